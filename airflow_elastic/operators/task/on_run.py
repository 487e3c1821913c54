"""What sensors and operators on an existing run share: they find the run, look at it, and wait in the triggerer."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, overload

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_elastic.core.conditions import Condition, to_plain
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.attach import newest
from airflow_elastic.operators.task.deferral import check_trigger
from airflow_elastic.operators.task.parameters import is_missing, is_templated, uri_problem
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.triggers.condition import ElasticRunConditionTrigger

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


class OnRun:
    """A task about a run that this or another task, DAG or shell drives.

    Args:
        run_uri: where the run is stored.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
    """

    task_id: str
    run_uri: str
    elastic_conn_id: str
    aws_conn_id: str | None

    def _set_run(self, run_uri: str, elastic_conn_id: str, aws_conn_id: str | None) -> None:
        """Keep the arguments. Raises SpecError if the URI is not valid."""
        self.run_uri, self.elastic_conn_id, self.aws_conn_id = run_uri, elastic_conn_id, aws_conn_id
        if not is_templated(run_uri) and (problem := uri_problem(run_uri)) is not None:
            raise SpecError(problem).below(self.task_id)

    def _open_store(self) -> Store:
        """The run's storage.

        Raises:
            AirflowException: the task that should push the URI has pushed none.
            AirflowFailException: the URI is not valid.
        """
        if is_missing(self.run_uri):
            raise AirflowException(
                f"run_uri is {self.run_uri!r}: the task that should push it has pushed none. "
                "Give both tasks the same run_uri, or run this one after that task"
            )
        if (problem := uri_problem(self.run_uri)) is not None:
            raise AirflowFailException(str(problem))
        return ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id).open_store(self.run_uri)

    def _open_newest(self) -> Store:
        """The storage of the newest run there: a task that has succeeded and is run again trains beside it, at `~2`.

        Raises:
            AirflowException, AirflowFailException: see `_open_store`.
            StoreError: the storage cannot be reached.
        """
        self._open_store()
        return newest(ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id), self.run_uri)

    def _defer_until(
        self,
        condition: Condition,
        poll_seconds: float,
        timeout: float | timedelta | None,
        *,
        run_uri: str | None = None,
        **kwargs: Any,
    ) -> NoReturn:
        """Wait in the triggerer, then call `resume` with the event and `kwargs`.

        Args:
            condition: what to wait for.
            poll_seconds: the longest time between two looks, seconds.
            timeout: the longest wait, seconds. Default: no limit.
            run_uri: of the run. Default: the argument of the task.
            kwargs: further arguments of `resume`, plain JSON.

        Raises:
            AirflowFailException: an argument cannot be handed to the triggerer.
        """
        trigger = ElasticRunConditionTrigger(
            run_uri=run_uri or self.run_uri,
            condition=to_plain(condition),
            elastic_conn_id=self.elastic_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_seconds=poll_seconds,
            connection_required=ElasticHook(self.elastic_conn_id).is_defined,
        )
        check_trigger(trigger)
        limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        self.defer(  # type: ignore[attr-defined]
            trigger=trigger, method_name="resume", timeout=limit, kwargs=kwargs or None
        )
        raise AssertionError("defer raises")


@overload
def seconds_of(name: str, value: float | timedelta) -> float: ...
@overload
def seconds_of(name: str, value: float | timedelta | None) -> float | None: ...
def seconds_of(name: str, value: float | timedelta | None) -> float | None:
    """An argument in seconds. Raises SpecError if it is neither a number nor a timedelta."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(Problem(name, value, "seconds, or a timedelta"))
    return float(value)
