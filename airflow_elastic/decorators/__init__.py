"""TaskFlow: `@task.elastic_train` and `@task.elastic_evaluate`."""

from airflow_elastic.decorators.evaluate import elastic_evaluate_task
from airflow_elastic.decorators.train import elastic_train_task

__all__ = ["elastic_evaluate_task", "elastic_train_task"]
