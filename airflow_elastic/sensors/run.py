"""ElasticRunSensor: waits until a run has come somewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.parameters import interval_problem, is_templated, uri_problem
from airflow_elastic.spec.errors import ElasticError, InvalidInput, Problem, SpecError
from airflow_elastic.spec.validation import finite_positive
from airflow_elastic.triggers.plain import require_plain
from airflow_elastic.triggers.reached import ElasticRunReachedTrigger
from airflow_elastic.triggers.target import Target, reached

if TYPE_CHECKING:
    from airflow.sdk import Context


class ElasticRunSensor(BaseSensorOperator):
    """Waits for a state, a step or a checkpoint of a run, wherever that is driven from; also for a run yet to come.

        ElasticRunSensor(task_id="half_way", run_uri="s3://training/mnist", step=500)

    It fails where the run has ended short of that. Its result is a dict with `run_uri`, `state`, `step` and
    `checkpoint` (the newest one's step) as they were then.

    Args:
        run_uri: where the run lies. (The XCom `run_uri` of a training task names it, once that task has begun.)
        state: `running`, `ended`, `succeeded`, `failed` or `stopped`. Default: `succeeded`, without `step` and
            `checkpoint`.
        step: an optimizer step that the run has done.
        checkpoint: the step that a checkpoint has at least; True for any checkpoint.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: False waits in a worker, in the way that `mode` says.
        poke_interval: seconds between two looks. Default: 10.
    """

    template_fields: Sequence[str] = ("run_uri", "elastic_conn_id", "aws_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        run_uri: str,
        state: str | None = None,
        step: int | None = None,
        checkpoint: int | bool | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        deferrable: bool = True,
        poke_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        numbers = interval_problem("poke_interval", poke_interval), _limit_problem(kwargs.get("timeout"))
        if problems := [problem for problem in numbers if problem is not None]:
            raise SpecError(*problems).below(str(kwargs.get("task_id")))
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.run_uri = run_uri
        self.state = "succeeded" if (state, step, checkpoint) == (None, None, None) else state
        self.step = step
        self.checkpoint = checkpoint
        self.elastic_conn_id = elastic_conn_id
        self.aws_conn_id = aws_conn_id
        self.deferrable = deferrable
        Target(self.state, self.step, self.checkpoint)
        if not is_templated(run_uri) and (problem := uri_problem(run_uri)) is not None:
            raise SpecError(problem).below(self.task_id)

    def execute(self, context: Context) -> Any:
        """Look once; then wait in the triggerer, or poke."""
        if not self.deferrable:
            return super().execute(context)
        found = self._look()
        if found is None:
            self._wait()
        return found

    def _wait(self) -> NoReturn:
        trigger = ElasticRunReachedTrigger(
            run_uri=self.run_uri,
            state=self.state,
            step=self.step,
            checkpoint=self.checkpoint,
            elastic_conn_id=self.elastic_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_seconds=self.poke_interval,
        )
        try:
            require_plain(trigger.serialize()[1])
        except InvalidInput as error:
            raise AirflowFailException(str(error)) from error
        self.defer(trigger=trigger, method_name="resume", timeout=self.timeout)

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The trigger has fired."""
        if "error" in event:
            raise AirflowException(str(event["error"]))
        return event["reached"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether the run is there."""
        found = self._look()
        return PokeReturnValue(found is not None, found)

    def _look(self) -> dict[str, Any] | None:
        if not self.run_uri or self.run_uri == "None":
            raise AirflowException(
                f"run_uri is {self.run_uri!r}: the task that it is taken from has pushed none (yet); give both tasks "
                "the same run_uri, or put this one after it"
            )
        if (problem := uri_problem(self.run_uri)) is not None:
            raise AirflowFailException(str(problem))
        hook = ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id)
        try:
            return reached(hook.open_store(self.run_uri), Target(self.state, self.step, self.checkpoint))
        except ElasticError as error:
            raise AirflowException(str(error)) from error


def _limit_problem(given: Any) -> Problem | None:
    """Of Airflow's own `timeout`: what no calendar has it refuses in words of Python's, or when the task defers."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    allowed = finite_positive.broken(seconds) if seconds else None  # 0: one look
    return None if allowed is None else Problem("timeout", given, allowed)
