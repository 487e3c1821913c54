"""What sensors of runs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_elastic.core.conditions import Condition, Look, OutOfReach
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.on_run import OnRun
from airflow_elastic.operators.task.parameters import interval_problem
from airflow_elastic.spec.errors import ElasticError, Problem, SpecError
from airflow_elastic.spec.validation import finite_positive
from airflow_elastic.triggers.looks import RunReader

if TYPE_CHECKING:
    from airflow.sdk import Context


class RunConditionSensor(OnRun, BaseSensorOperator):
    """Waits until a condition holds for a run. Subclasses give the condition.

    All sensors on one triggerer that wait for the same run share one look at it.

    Args:
        run_uri: where the run is stored; it need not exist yet.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: the longest time between two looks at the run, seconds. Default: 30.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = ("run_uri", "elastic_conn_id", "aws_conn_id")
    ui_color = "#e8f0fe"

    #: Whether an end of the run without the condition skips the task, and with it what follows, instead of failing it.
    skips_at_end = False

    def __init__(
        self,
        *,
        run_uri: str,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        deferrable: bool = True,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        numbers = interval_problem("poke_interval", poke_interval), limit_problem(kwargs.get("timeout"))
        if problems := [problem for problem in numbers if problem is not None]:
            raise SpecError(*problems).below(str(kwargs.get("task_id")))
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable
        self._before: Look | None = None
        self._set_run(run_uri, elastic_conn_id, aws_conn_id)

    def condition(self) -> Condition:
        """What to wait for. Raises SpecError for a value that is not allowed."""
        raise NotImplementedError

    def execute(self, context: Context) -> Any:
        """Look once, then wait in the triggerer; poke if `deferrable` is False."""
        if not self.deferrable:
            return super().execute(context)
        found = self._look()
        if found is None:
            self._defer_until(self._condition(), self.poke_interval, self.timeout)
        return found

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the result after the trigger has fired.

        Raises:
            AirflowSkipException: the run has ended without it, and that or `soft_fail` skips the task.
            AirflowException: the run cannot reach it.
        """
        if "error" in event:
            self._give_up(str(event["error"]), ended=bool(event.get("ended")))
        return event["reached"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether the condition holds."""
        found = self._look()
        return PokeReturnValue(found is not None, found)

    def _look(self) -> dict[str, Any] | None:
        try:
            condition = self._condition()
            look = RunReader(self._open_store()).look(condition.reads)
            # Signs that must last need a second look. A sensor in a worker has no other memory of the first.
            before = self._before if self.deferrable or self._before is not None or look is None else look
            found = None if look is None else condition.judge(look, before)
        except OutOfReach as error:
            self._give_up(str(error), ended=True)
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        self._before = look
        return found

    def _condition(self) -> Condition:
        try:
            return self.condition()
        except SpecError as error:  # of a template
            raise AirflowFailException(str(error)) from error

    def _give_up(self, text: str, *, ended: bool) -> None:
        if ended and (self.skips_at_end or self.soft_fail):
            raise AirflowSkipException(text)
        raise AirflowException(text)


def limit_problem(given: Any) -> Problem | None:
    """What is wrong with Airflow's `timeout`: Airflow refuses it later, with an error of Python's calendar."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    allowed = finite_positive.broken(seconds) if seconds else None  # 0 means one look
    return None if allowed is None else Problem("timeout", given, allowed)
