"""Sensors: wait for a run, or for room for one.

- `capacity`: room for workers.
- `run`: a state, a step or a checkpoint. `checkpoint`: one of a certain age or metric. `health`: a sign of bad health.
"""

from __future__ import annotations

from airflow_elastic.sensors.capacity import ElasticCapacitySensor
from airflow_elastic.sensors.checkpoint import ElasticCheckpointSensor
from airflow_elastic.sensors.health import ElasticHealthSensor
from airflow_elastic.sensors.run import ElasticRunSensor

__all__ = ["ElasticCapacitySensor", "ElasticCheckpointSensor", "ElasticHealthSensor", "ElasticRunSensor"]
