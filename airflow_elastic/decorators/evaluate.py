"""`@task.elastic_evaluate`: a task whose function is the script that evaluates, or returns the command for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_elastic.decorators.function_task import FunctionTask
from airflow_elastic.operators import ElasticEvaluateOperator


class ElasticEvaluateDecoratedOperator(FunctionTask, ElasticEvaluateOperator):
    """Evaluates with the decorated function."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ElasticEvaluateOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **ElasticEvaluateOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.elastic_evaluate"


def elastic_evaluate_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = True, **kwargs: Any
) -> TaskDecorator:
    """Make an evaluation of a function, as `@task.elastic_train` makes a training of it.

        @task.elastic_evaluate(source="s3://models/digits", optional=True)
        def evaluate(batch: int):
            import torch
            import airflow_elastic.runtime as elastic
            run, model = elastic.init(), torch.nn.Linear(8, 1)
            run.restore(model)
            run.finish(mean=model(torch.ones(batch, 8)).mean().item())

    The same rules hold for the names that the function uses, and for its arguments. A function that returns a value is
    called by Airflow, and returns the command.

    Args:
        python_callable: the function.
        multiple_outputs: whether each part of the result is an XCom of its own: `new["metrics"]`.
        kwargs: arguments of ElasticEvaluateOperator.

    Raises:
        SpecError: at parse time, with every reason why the function cannot be a script.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ElasticEvaluateDecoratedOperator,
        **kwargs,
    )
