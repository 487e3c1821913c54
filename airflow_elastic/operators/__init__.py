"""Operators."""

from __future__ import annotations

from airflow_elastic.operators.train import ElasticTrainOperator

__all__ = ["ElasticTrainOperator"]
