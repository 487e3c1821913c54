"""TaskFlow: `@task.elastic_train`."""

from __future__ import annotations

from airflow_elastic.decorators.train import elastic_train_task

__all__ = ["elastic_train_task"]
