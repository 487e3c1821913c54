"""Triggers: the controller's place in Airflow's triggerer.

- `run`: drives a run until it ends. `condition`: waits until a condition holds for a run; `looks`: one look for all.
- `assets`: events for an AssetWatcher, for new checkpoints and promotions.
- `driving`: shares one controller between triggers. `abandoned`: ends runs whose task is gone.
"""

from __future__ import annotations

from airflow_elastic.triggers.assets import ElasticCheckpointEventTrigger, ElasticPromotionEventTrigger
from airflow_elastic.triggers.condition import ElasticRunConditionTrigger
from airflow_elastic.triggers.run import ElasticRunTrigger

__all__ = [
    "ElasticCheckpointEventTrigger",
    "ElasticPromotionEventTrigger",
    "ElasticRunConditionTrigger",
    "ElasticRunTrigger",
]
