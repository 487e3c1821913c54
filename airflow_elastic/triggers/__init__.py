"""Triggers: the controller's home in Airflow's triggerer."""

from __future__ import annotations

from airflow_elastic.triggers.reached import ElasticRunReachedTrigger
from airflow_elastic.triggers.run import ElasticRunTrigger

__all__ = ["ElasticRunReachedTrigger", "ElasticRunTrigger"]
