"""Operators: one task is one run.

- `train`: `ElasticTrainOperator`.
- `steering`: operators that scale, save, stop or prune a run of another task.
- `evaluate`: `ElasticEvaluateOperator`.
- `promote`: operators that change the promoted model.
- `link`: the link to the page of a run. `task`: what they share with each other and with sensors.
"""

from __future__ import annotations

from airflow_elastic.operators.evaluate import ElasticEvaluateOperator
from airflow_elastic.operators.promote import ElasticPromoteOperator, ElasticRollbackOperator
from airflow_elastic.operators.steering import (
    ElasticCheckpointOperator,
    ElasticPruneOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
)
from airflow_elastic.operators.train import ElasticTrainOperator

__all__ = [
    "ElasticCheckpointOperator",
    "ElasticEvaluateOperator",
    "ElasticPromoteOperator",
    "ElasticPruneOperator",
    "ElasticRollbackOperator",
    "ElasticScaleOperator",
    "ElasticStopOperator",
    "ElasticTrainOperator",
]
