"""Hooks: credentials and clients out of Airflow connections."""

from __future__ import annotations

from airflow_elastic.hooks.elastic import ElasticHook

__all__ = ["ElasticHook"]
