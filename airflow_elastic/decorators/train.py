"""`@task.elastic_train`: a task whose function returns the command to train with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    SET_DURING_EXECUTION,
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.exceptions import AirflowFailException

from airflow_elastic.operators import ElasticTrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class ElasticTrainDecoratedOperator(DecoratedOperator, ElasticTrainOperator):
    """Trains with the command that the decorated function returns.

    Args:
        python_callable: the function. A worker calls it at each try; it must return the same command each time.
        op_args: its positional arguments.
        op_kwargs: its keyword arguments.
        kwargs: arguments of ElasticTrainOperator.
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ElasticTrainOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **ElasticTrainOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.elastic_train"
    overwrite_rtif_after_execution: bool = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            command=SET_DURING_EXECUTION,
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        """Call the function for the command, then train. A resumed task does not call it again."""
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        command = self.python_callable(*self.op_args, **kwargs)
        if not command or not isinstance(command, str | list | tuple):
            raise AirflowFailException(
                f"the function {self.python_callable.__name__} returned {command!r}; allowed: the command, as a list "
                "of a script and its arguments, or as one line"
            )
        self.command = command
        self.render_template_fields(context)
        return super().execute(context)


def elastic_train_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a training task of a function that returns the command to train with.

        @task.elastic_train(workers=2, checkpoint_every_seconds=60)
        def train(epochs: int) -> list[str]:
            return ["train.py", "--epochs", str(epochs)]

    Args:
        python_callable: the function.
        kwargs: arguments of ElasticTrainOperator.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=ElasticTrainDecoratedOperator,
        **kwargs,
    )
