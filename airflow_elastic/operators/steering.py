"""Operators that ask something of a run of another task, another DAG or a shell, and wait until it is done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_elastic.control.prune import prune_run
from airflow_elastic.control.runs import Run
from airflow_elastic.core.conditions import AtSize, Condition, HasCheckpoint, Look, OutOfReach, Reached
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.on_run import OnRun, seconds_of
from airflow_elastic.operators.task.parameters import interval_problem, is_missing, is_templated
from airflow_elastic.spec.errors import ElasticError, InvalidInput, Problem, RunMissing, SpecError
from airflow_elastic.spec.validation import finite_positive, positive_int, worker_count
from airflow_elastic.triggers.looks import RunReader

if TYPE_CHECKING:
    from airflow.sdk import Context


class _SteeringOperator(OnRun, BaseOperator):
    """Asks something of a run, and waits for it. Subclasses ask, and name the condition.

    Args:
        run_uri: where the run is stored.
        optional: skip the task if there is no run. Default: False, the task fails.
        wait: wait until it is done; False: the task ends when the request is posted.
        wait_timeout: the task fails after waiting so long; seconds or a timedelta.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker.
        poll_interval: the longest time between two looks at the run, seconds or a timedelta.
    """

    template_fields: Sequence[str] = ("run_uri", "elastic_conn_id", "aws_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        run_uri: str,
        optional: bool = False,
        wait: bool = True,
        wait_timeout: float | timedelta = 3600.0,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        deferrable: bool = True,
        poll_interval: float | timedelta = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.optional, self.wait, self.deferrable = optional, wait, deferrable
        if (problem := interval_problem("poll_interval", poll_interval)) is not None:
            raise SpecError(problem).below(self.task_id)
        self.wait_timeout = seconds_of("wait_timeout", wait_timeout)
        self.poll_interval = seconds_of("poll_interval", poll_interval)
        if (allowed := finite_positive.broken(self.wait_timeout)) is not None:
            raise SpecError(Problem("wait_timeout", wait_timeout, allowed)).below(self.task_id)
        self._set_run(run_uri, elastic_conn_id, aws_conn_id)

    def execute(self, context: Context) -> Any:
        """Post the request, then wait; or skip the task if there is no run, and that is allowed."""
        ti = context["ti"]
        if self.optional and is_missing(self.run_uri):
            raise AirflowSkipException("there is no run: the task that should push its URI has pushed none")
        try:
            run = Run(self._open_newest())
            condition = self._ask(run, f"{ti.dag_id}.{ti.task_id}")
            if condition is not None:
                self.log.info("%s", f"asked {run.store.uri} for {condition}")
            if condition is None or not self.wait:
                return RunReader(run.store).summary()
            if self.deferrable:
                self._defer_until(condition, self.poll_interval, self.wait_timeout, run_uri=run.store.uri)
            return self._wait_here(run, condition)
        except RunMissing as error:  # another task may be about to create it
            raise self._too_late(str(error), ended=True) from error
        except OutOfReach as error:
            raise self._too_late(str(error), ended=error.ended) from error
        except InvalidInput as error:
            raise AirflowFailException(str(error)) from error
        except ElasticError as error:
            raise AirflowException(str(error)) from error

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the summary of the run after the trigger has fired. Raises AirflowException if it will never hold."""
        if "error" in event:
            raise self._too_late(str(event["error"]), ended=bool(event.get("ended")))
        return event["reached"]

    def _too_late(self, text: str, *, ended: bool) -> AirflowException:
        """The exception for a run that does not reach it any more."""
        return AirflowSkipException(text) if ended and self.optional else AirflowException(text)

    def _skip_if_ended(self, run: Run) -> None:
        if self.optional and run.state.ended:
            raise AirflowSkipException(f"{run.store.uri} has ended")

    def _ask(self, run: Run, by: str) -> Condition | None:
        """Post the request. Returns what to wait for; None if it is done already."""
        raise NotImplementedError

    def _wait_here(self, run: Run, condition: Condition) -> dict[str, Any]:
        reader, before = RunReader(run.store), None
        deadline = time.monotonic() + self.wait_timeout
        while True:
            look: Look | None = reader.look(condition.reads)
            found = None if look is None else condition.judge(look, before)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise AirflowException(
                    f"{run.store.uri} has not reached {condition} in {self.wait_timeout:g} s"
                )
            before = look
            time.sleep(self.poll_interval)


class ElasticScaleOperator(_SteeringOperator):
    """Asks a run for another number of workers, and succeeds when they train together.

        ElasticScaleOperator(task_id="night", run_uri="s3://training/mnist", workers=8)

    The result is a dict with `run_uri`, `state`, `step`, `checkpoint` and `workers`. The task fails if the run has
    ended or ends, does not allow so many workers, or somebody asks for another number meanwhile.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        workers: how many; between the run's `min_workers` and `max_workers`.
        optional: skip the task if there is no run, or it has ended or ends. Default: False, the task fails.
        wait: wait until they train; False: end when the request is posted. Default: True.
        wait_timeout: the task fails after waiting so long; the request stays. Seconds or a timedelta. Default: 3600.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker. Default: True.
        poll_interval: the longest time between two looks at the run, seconds or a timedelta. Default: 5.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = (*_SteeringOperator.template_fields, "workers")

    def __init__(self, *, workers: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workers = workers
        if not is_templated(workers):
            self._count()

    def _count(self) -> int:
        text = self.workers
        number = int(text) if isinstance(text, str) and text.strip().isdecimal() else text
        if (allowed := worker_count.broken(number)) is not None:
            raise SpecError(Problem("workers", text, allowed)).below(self.task_id)
        return int(number)

    def _ask(self, run: Run, by: str) -> Condition:
        workers = self._count()
        self._skip_if_ended(run)
        run.ask_scale(workers, by=by)
        return AtSize(workers)


class ElasticCheckpointOperator(_SteeringOperator):
    """Asks a run to save now, and succeeds when all steps done so far are in a committed checkpoint.

        ElasticCheckpointOperator(task_id="before_the_upgrade", run_uri="s3://training/mnist")

    The result is a dict as that of ElasticCheckpointSensor: `checkpoint` (its step), `manifest`, `data`, `metrics`, and
    more. The task fails if the run has ended, or ends without it.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        optional: skip the task if there is no run, or it has ended or ends. Default: False, the task fails.
        wait: wait for the checkpoint; False: end when the request is posted. Default: True.
        wait_timeout: the task fails after waiting so long; the request stays. Seconds or a timedelta. Default: 3600.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker. Default: True.
        poll_interval: the longest time between two looks at the run, seconds or a timedelta. Default: 5.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    def _ask(self, run: Run, by: str) -> Condition:
        self._skip_if_ended(run)
        step = int(RunReader(run.store).summary()["step"])
        run.ask_save(by=by)
        return HasCheckpoint(step=max(1, step))


class ElasticStopOperator(_SteeringOperator):
    """Asks a run to save and end, and succeeds when it has ended; also if it had ended before.

        ElasticStopOperator(task_id="stop", run_uri="{{ ti.xcom_pull('train', key='run_uri') }}")

    The task that drives the run fails, and is not tried again; a run that was stopped goes on if that task is cleared.
    With `skip_on_stop` that task is skipped. With `requeue_on_stop` it is queued again, and the run then goes on.
    The result is a dict with `run_uri`, `state`, `step` and `checkpoint`. As a teardown it ends a training that its DAG
    run leaves behind:

        ElasticStopOperator(task_id="end", run_uri="/runs/mnist", optional=True).as_teardown()

    Args:
        run_uri: where the run is stored.
        optional: skip the task if there is no run. Default: False, the task fails.
        wait: wait for the end; False: end when the request is posted. Default: True.
        wait_timeout: the task fails after waiting so long; the request stays. Seconds or a timedelta. Default: 3600.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker. Default: True.
        poll_interval: the longest time between two looks at the run, seconds or a timedelta. Default: 5.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    def _ask(self, run: Run, by: str) -> Condition | None:
        if run.state.ended:
            return None
        run.ask_stop(by=by)
        return Reached(state="ended")


class ElasticPruneOperator(OnRun, BaseOperator):
    """Removes old checkpoints of a run, and files that ended attempts have left.

        ElasticPruneOperator(task_id="tidy", run_uri="s3://training/mnist", keep=1)

    Pinned checkpoints stay, and the one that was last read completely, and those that the run's specification keeps. If
    none of those that would stay is whole, nothing is removed, and the task fails. A live attempt is not disturbed. The
    result is a dict with `removed` (steps), `leftovers` (files) and `leftover_bytes`.

    Args:
        run_uri: where the run is stored.
        keep: how many of the newest checkpoints stay. Default: 1.
        preview: only say what would be removed. Default: False.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = ("run_uri", "elastic_conn_id", "aws_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        run_uri: str,
        keep: int = 1,
        preview: bool = False,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (allowed := positive_int.broken(keep)) is not None:
            raise SpecError(Problem("keep", keep, allowed)).below(self.task_id)
        self.keep, self.preview = keep, preview
        self._set_run(run_uri, elastic_conn_id, aws_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        """Remove them."""
        try:
            pruned = prune_run(Run(self._open_store()), self.keep, dry_run=self.preview)
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        verb = "would remove" if self.preview else "removed"
        self.log.info("%s", f"{verb} checkpoints {list(pruned.steps)} and {pruned.leftovers} files")
        return {
            "removed": list(pruned.steps),
            "leftovers": pruned.leftovers,
            "leftover_bytes": pruned.leftover_bytes,
        }
