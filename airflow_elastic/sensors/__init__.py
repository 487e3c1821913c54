"""Sensors: wait for a run."""

from __future__ import annotations

from airflow_elastic.sensors.run import ElasticRunSensor

__all__ = ["ElasticRunSensor"]
