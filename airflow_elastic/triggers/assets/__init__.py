"""Triggers for an AssetWatcher: an event for each new checkpoint of a run, or each new promotion of a model.

They only read, wherever the run or the model is made: in a task, another DAG or a shell.
"""

from __future__ import annotations

from airflow_elastic.triggers.assets.checkpoint import ElasticCheckpointEventTrigger
from airflow_elastic.triggers.assets.promotion import ElasticPromotionEventTrigger

__all__ = ["ElasticCheckpointEventTrigger", "ElasticPromotionEventTrigger"]
