"""The life of a task that drives a run: it submits, defers and resumes; and what ends the run with the task."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferralTimeout,
)

from airflow_elastic.control.runs import Run
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.attach import acknowledge, attach, current
from airflow_elastic.operators.task.deferral import check_trigger
from airflow_elastic.operators.task.foreground import Foreground
from airflow_elastic.operators.task.lineage import Lineage
from airflow_elastic.operators.task.outlets import tell_outlets
from airflow_elastic.operators.task.parameters import PARAMETERS, in_own_names
from airflow_elastic.operators.task.result import (
    failure,
    is_stopped,
    last_number_of_ranks,
    result,
    run_summary,
)
from airflow_elastic.spec.errors import (
    ElasticError,
    InvalidInput,
    RunDiffers,
    SpecError,
    StoreError,
    StoreUnfit,
    in_words,
)
from airflow_elastic.triggers import ElasticRunTrigger
from airflow_elastic.triggers.callbacks import plain_callbacks
from airflow_elastic.triggers.driving import stop
from airflow_elastic.triggers.task import task_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.run import RunSpec


#: A stopped task is queued again after so long: what it was stopped for is queued by then.
REQUEUE_AFTER = timedelta(seconds=10)


class DrivesRun(Lineage, BaseOperator):
    """A task that drives a run to its end. Subclasses say which run: its specification and its URI."""

    elastic_conn_id: str
    aws_conn_id: str | None
    deferrable: bool
    poll_interval: Any
    skip_on_stop: bool
    requeue_on_stop: bool
    callbacks: dict[str, list[dict[str, Any]]]
    _foreground: Foreground | None = None

    def __init__(self, **kwargs: Any) -> None:
        # Without this method mapped tasks of Airflow 3.3 have None as their inlets, and cannot start: see
        # findings/airflow_mapped_inlets.sh.
        super().__init__(**kwargs)

    def _set_callbacks(self, given: Mapping[str, Any]) -> None:
        """Keep the callbacks. Raises SpecError if the triggerer could not call one."""
        try:
            self.callbacks = {name: plain_callbacks(name, value) for name, value in given.items() if value}
        except SpecError as error:
            raise error.below(self.task_id) from None

    def _spec(self, context: Context, hook: ElasticHook) -> RunSpec:
        """The specification of the run. Raises SpecError."""
        raise NotImplementedError

    def _run_uri(self, context: Context, hook: ElasticHook) -> str:
        """Where the run is stored. Raises SpecError."""
        raise NotImplementedError

    def execute(self, context: Context) -> Any:
        """Create the run, or take over the existing one; then defer, or drive it here."""
        ti = context["ti"]
        owner = str(ti.id)
        hook = self._hook()
        try:
            spec = self._spec(context, hook)
            run = attach(hook, self._run_uri(context, hook), spec, owner, task_key(ti))
            state = run.state
        except RunDiffers as error:
            advised = error.advised("start a new DAG run, or give another run_uri")
            raise AirflowFailException(in_words(str(advised), PARAMETERS)) from error
        except SpecError as error:
            raise AirflowFailException(str(in_own_names(error))) from error
        except (InvalidInput, StoreUnfit) as error:
            raise AirflowFailException(str(error)) from error
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        ti.xcom_push(key="run_uri", value=run.store.uri)
        self.log.info("the run %s %s", run.store.uri, run_summary(run, state))
        if state.ended:
            return self._conclude(context, run, state)
        if self.deferrable:
            self._defer(run.store.uri, owner)
        self._foreground = Foreground(hook, run, ti, self.log, self.poll_interval, self.callbacks)
        return self._conclude(context, run, self._foreground.drive())

    def resume(self, context: Context, event: Mapping[str, Any], run_uri: str | None = None) -> Any:
        """Finish the task after the trigger has fired. The outcome is read from the run, not from the event.

        Args:
            context: the task's context.
            event: the trigger's event.
            run_uri: from the deferral; `dag.test()` and `airflow tasks test` pass on only the event.
        """
        if "error" in event:
            raise AirflowException(str(event["error"]))
        run_uri = run_uri or str(event["run_uri"])
        try:
            run = Run(self._hook().open_store(run_uri))
            state = run.state
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        if not state.ended:  # it was reopened after the event
            self._defer(run_uri, str(context["ti"].id))
        return self._conclude(context, run, state)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """End the run after a late deferral or a dead trigger, because Airflow then does not call `on_kill`."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as late:
            self._stop_here(context, "Airflow: the deferral timed out")
            raise AirflowFailException(
                "the task was deferred for longer than allowed: its run has saved and ended"
            ) from late
        except TaskDeferralError:
            ti = context["ti"]
            if ti.try_number > (ti.max_tries or 0):  # no retry that would take it over
                self._stop_here(context, "Airflow: the trigger died, and there is no further try")
            raise

    def on_kill(self) -> None:
        """With deferrable=False: let the run save and end. (For a deferred task the trigger does this.)"""
        if self._foreground is not None and not self._foreground.stop("Airflow: the task was ended"):
            self.log.warning("the run is still ending: its workers have the request to save and to end")

    def _defer(self, run_uri: str, owner: str) -> None:
        trigger = ElasticRunTrigger(
            run_uri=run_uri,
            owner=owner,
            elastic_conn_id=self.elastic_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_seconds=self.poll_interval,
            callbacks=self.callbacks,
            connection_required=self._hook().is_defined,
        )
        check_trigger(trigger)
        # No timeout: the trigger enforces the run's own deadline, in time, and lets the run save.
        self.defer(trigger=trigger, method_name="resume", kwargs={"run_uri": run_uri})

    def _conclude(self, context: Context, run: Run, state: RunState) -> dict[str, Any]:
        """The result of a run that succeeded; raises for any other."""
        self._ended_run = run
        if state.outcome != "succeeded":
            error = failure(run, state, self.log)
            if self.requeue_on_stop and is_stopped(state):
                self.log.info("%s", f"{error}; the task is queued again, and goes on from there")
                raise AirflowRescheduleException(datetime.now(UTC) + REQUEUE_AFTER)  # type: ignore[no-untyped-call]
            raise AirflowSkipException(str(error)) if self.skip_on_stop and is_stopped(state) else error
        ti = context["ti"]
        try:
            value = result(run, state, self.log)
            for key in ("checkpoint", "metrics"):
                ti.xcom_push(key=key, value=value[key])
            tell_outlets(context, {**value, "world_size": last_number_of_ranks(run, state)})
            # Last, so that a retry after a failure above finds the complete run and returns its result.
            acknowledge(run, str(ti.id))
        except StoreError as error:
            raise AirflowException(str(error)) from error
        return value

    def _stop_here(self, context: Context, why: str) -> None:
        hook, owner = self._hook(), str(context["ti"].id)
        try:
            # Not from the XCom, which people may edit.
            run_uri = current(hook, self._run_uri(context, hook)).uri
            asyncio.run(stop(hook, run_uri, by=why, owner=owner, log=self.log))
        except (ElasticError, TimeoutError) as error:
            self.log.warning("the run could not be ended: %s", error)

    def _hook(self) -> ElasticHook:
        return ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id)
