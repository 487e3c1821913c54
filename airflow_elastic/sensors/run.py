"""ElasticRunSensor: waits until a run has reached a state, a step or a checkpoint."""

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
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.reached import ElasticRunReachedTrigger
from airflow_elastic.triggers.target import Target, reached

if TYPE_CHECKING:
    from airflow.sdk import Context


class ElasticRunSensor(BaseSensorOperator):
    """Waits until a run has reached a state, a step or a checkpoint.

        ElasticRunSensor(task_id="half_way", run_uri="s3://training/mnist", step=500)

    The run may be driven by another DAG, by a shell or by this DAG, and it need not exist yet. The sensor fails if the
    run ends before the target. Its result is a dict with `run_uri`, `state`, `step` and `checkpoint` (the step of the
    newest checkpoint) of that moment.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        state: `running`, `ended`, `succeeded`, `failed` or `stopped`. Default: `succeeded`, if `step` and `checkpoint`
            are not given.
        step: wait until the run has done this optimizer step.
        checkpoint: wait for a checkpoint of this step or a later one; True means any checkpoint.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: seconds between two looks at the run. Default: 10.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
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
        """Look once, then wait in the triggerer; poke if `deferrable` is False."""
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
            require_json(trigger.serialize()[1])
        except InvalidInput as error:
            raise AirflowFailException(str(error)) from error
        self.defer(trigger=trigger, method_name="resume", timeout=self.timeout)

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the result after the trigger has fired. Raises AirflowException if the run cannot reach the target."""
        if "error" in event:
            raise AirflowException(str(event["error"]))
        return event["reached"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether the run has reached the target."""
        found = self._look()
        return PokeReturnValue(found is not None, found)

    def _look(self) -> dict[str, Any] | None:
        if not self.run_uri or self.run_uri == "None":
            raise AirflowException(
                f"run_uri is {self.run_uri!r}: the task that should push it has pushed none. "
                "Give both tasks the same run_uri, or run this one after that task"
            )
        if (problem := uri_problem(self.run_uri)) is not None:
            raise AirflowFailException(str(problem))
        hook = ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id)
        try:
            return reached(hook.open_store(self.run_uri), Target(self.state, self.step, self.checkpoint))
        except ElasticError as error:
            raise AirflowException(str(error)) from error


def _limit_problem(given: Any) -> Problem | None:
    """What is wrong with Airflow's `timeout`: Airflow refuses it later, with an error of Python's calendar."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    allowed = finite_positive.broken(seconds) if seconds else None  # 0 means one look
    return None if allowed is None else Problem("timeout", given, allowed)
