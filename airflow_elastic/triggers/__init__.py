"""Triggers: the controller's place in Airflow's triggerer.

- `run`: drives a run until it ends. `reached`: waits for a step, a metric or a checkpoint of a run.
- `driving`: shares one controller between triggers. `abandoned`: ends runs whose task is gone.
"""

from __future__ import annotations

from airflow_elastic.triggers.reached import ElasticRunReachedTrigger
from airflow_elastic.triggers.run import ElasticRunTrigger

__all__ = ["ElasticRunReachedTrigger", "ElasticRunTrigger"]
