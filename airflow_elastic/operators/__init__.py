"""Operators: one task is one run.

- `train`: `ElasticTrainOperator`. `parameters`: its arguments, checked. `attach`: finds the run of an earlier try.
- `steering`: operators that scale, save, stop or prune a run of another task. `on_run`: what they share with sensors.
- `foreground`: drives the run in the worker, without a triggerer. `result`: what the task returns. `link`: the page.
"""

from __future__ import annotations

from airflow_elastic.operators.steering import (
    ElasticCheckpointOperator,
    ElasticPruneOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
)
from airflow_elastic.operators.train import ElasticTrainOperator

__all__ = [
    "ElasticCheckpointOperator",
    "ElasticPruneOperator",
    "ElasticScaleOperator",
    "ElasticStopOperator",
    "ElasticTrainOperator",
]
