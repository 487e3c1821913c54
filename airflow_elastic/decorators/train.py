"""`@task.elastic_train`: a task whose function is the training script, or returns the command to train with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_elastic.decorators.function_task import FunctionTask
from airflow_elastic.operators import ElasticTrainOperator


class ElasticTrainDecoratedOperator(FunctionTask, ElasticTrainOperator):
    """Trains with the decorated function."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ElasticTrainOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **ElasticTrainOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.elastic_train"


def elastic_train_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a training task of a function: its body is the training script.

        @task.elastic_train(workers=2, checkpoint_every_seconds=60)
        def train(epochs: int):
            import airflow_elastic.runtime as elastic
            run = elastic.init()
            ...

    Workers get the function with the imports, functions, classes and constants of the file that it uses, as one file.
    They need no folder with it. What cannot go with it is refused with its line, while the DAG is parsed:

    - names from Airflow, or from modules beside the DAG file (unless `env` has PYTHONPATH, where workers find them);
    - parameters and loop variables around the function;
    - constants that have another value on workers, such as one from `os.environ`.

    Statements of the file that only do something, such as `torch.manual_seed(0)`, do not go with it.

    Arguments are JSON values. Templates and outputs of other tasks are resolved when the task begins. Airflow's context
    is not there: pass a template such as `"{{ ds }}"`. `airflow-elastic status RUN_URI --script` prints the script.
    Tracebacks have the lines of the DAG file. Script and arguments are stored as plain text: give secrets by `secrets`.

    A function that returns a value is called by Airflow, and returns the command:

        @task.elastic_train(workers=2)
        def train(epochs: int) -> list[str]:
            return ["train.py", "--epochs", str(epochs)]

    Args:
        python_callable: the function.
        kwargs: arguments of ElasticTrainOperator.

    Raises:
        SpecError: at parse time, with every reason why the function cannot be a script.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=ElasticTrainDecoratedOperator,
        **kwargs,
    )
