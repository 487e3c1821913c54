"""ElasticTrainOperator: one training, as one task."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
)

from airflow_elastic.control.runs import Run
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.attach import acknowledge, attach, current
from airflow_elastic.operators.foreground import Foreground
from airflow_elastic.operators.link import ElasticRunLink
from airflow_elastic.operators.naming import default_uri, run_name
from airflow_elastic.operators.parameters import (
    PARAMETERS,
    PATHS,
    build_spec,
    earliest,
    early_problems,
    in_own_names,
    is_templated,
    uri_problem,
)
from airflow_elastic.operators.result import failure, result, standing
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
from airflow_elastic.triggers.driving import stop
from airflow_elastic.triggers.observer import TaskObserver
from airflow_elastic.triggers.plain import require_plain
from airflow_elastic.triggers.task import task_key, xcom_pusher

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.run import RunSpec


class ElasticTrainOperator(BaseOperator):
    """Trains a model with several workers that may come, go and fail, and succeeds when training is complete.

        ElasticTrainOperator(
            task_id="train",
            command=["train.py", "--epochs", "3"],   # beside the DAG file
            workers=2, min_workers=1, max_workers=4,
            checkpoint_every_seconds=60,
        )

    The task submits the run and defers: while it trains, no worker slot is used. A failed attempt is followed by the
    next one, from the newest checkpoint, without using up the task's `retries`. Rank 0's lines and what happens to
    the run go to the task's log while it happens.

    **What a try works on.** The run lies at `run_uri`; the default one names DAG, task, DAG run and map index, and
    never the try. So a retry, and a task that was cleared, find the run that is there: one that goes on is taken over
    (training is not interrupted), one that failed or was stopped is reopened and goes on from its newest checkpoint
    with a fresh budget and deadline, one whose success was never noted is returned as it is. After a task has
    *succeeded*, clearing it trains anew beside it, at `<run_uri>~2`. A run of another specification (the DAG was
    edited in between) is refused: give another `run_uri`, or start a new DAG run. The same DAG in another folder (a new
    version of its bundle) is the same run.

    **What ends a run early.** Marking the task, or its DAG run, failed or succeeded: workers save, and end.
    A cleared task's run goes on for 40 s; if no new try has taken it over by then, for want of a worker slot, it saves
    and ends, and the new try goes on from there. (While the DAG is paused it keeps training, and its trigger.) A
    triggerer that restarts, or is killed, does not touch training; where none takes its place within
    `unattended_timeout`, workers save and end by themselves, and whoever carries the run on next starts them again.

    **What fails.** An error of the script, an engine's refusal, and a run that a person has stopped fail the task
    without further tries, as another try would meet the same. Everything else (lost machines beyond the budget, a hang,
    a passed deadline) may be tried again.

    **Where to look.** The button "Elastic run" on the task instance, also while it is deferred, leads to the run's page
    on the API server, `/elastic/runs/<dag_id>/<run_id>/<task_id>?map_index=-1`: state, progress, attempts and why they
    ended, checkpoints, where the time went; with `&format=json` it is the status document. Whoever may read the task
    instance may read its page. The API server reads the run with its own rights, so it has to reach `run_uri`, and that
    has to be below the run root or below one of `[elastic] page_roots`. `airflow elastic` tells the same in a shell.

    XComs: `run_uri`, as soon as the run exists. While it trains: `progress` (`state`, `attempt`, `workers`,
    `world_size`, `step`, `total_steps`, `loss`, `samples_per_second`, `checkpoint`, `at`, and `log_position`, for us),
    renewed every 5 s; the last one has the state that the run ended in. When it has succeeded: `checkpoint` (`step`,
    `manifest`, `data`) and `metrics`; `return_value` holds `run_uri`, `step`, `checkpoint`, `metrics` and `attempts`.

    Args:
        command: the script and its arguments, all of them text, or `["-m", "package.module", …]`; a string is split as
            a shell would.
        workers: workers (machines or pods) to start with. Default: 1.
        min_workers: fewest workers it may go on with. Default: `workers`.
        max_workers: most workers a scale step may ask for. Default: `workers`.
        procs_per_worker: ranks of each worker. Default: 1.
        node_unit: the number of workers is always a multiple of this. Default: 1.
        worker_resources: what each worker asks the engine for, e.g. `{"cpu": "4", "memory": "8Gi"}`.
        launcher: how ranks are started: torchrun, torchrun-plain, accelerate, python, dlrover-run, horovodrun. Default:
            torchrun.
        launcher_options: what only that launcher understands.
        engine: where workers run. Default: that of the connection, else `local`.
        engine_options: what only that engine understands.
        working_dir: where the command runs. Default: on the local engine, for a script with a relative path, the folder
            of the DAG file; otherwise wherever the engine starts it.
        checkpoint_every_steps: save after so many optimizer steps.
        checkpoint_every_seconds: save when the newest checkpoint is so old; seconds, a timedelta, or "auto", from what
            a save costs and how often the run fails. Default: 300, without `checkpoint_every_steps`.
        keep_checkpoints: committed checkpoints to keep. Default: 3.
        checkpoint: whatever else the specification's `checkpoint` has, e.g. `{"keep_best": "min val_loss"}`.
        restart_policy: Never, OnFailure, Always or ExitCode. Default: OnFailure.
        restart_exit_codes: codes that ExitCode restarts, beside 130, 137, 138 and 143.
        backoff_limit: restarts that the run may use. Default: 6. Lost-and-found machines count, scale steps and
            preemptions do not.
        no_progress_timeout: a run whose step has not advanced for so long hangs; seconds or a timedelta. Default: 600.
        start_timeout: the same until the first step of an attempt. Default: 1800.
        grace_period: what workers get to save when they are told to end. Default: 30.
        unattended_timeout: workers that no triggerer has looked after for so long save and end; seconds or a timedelta.
            Default: 1800.
        active_deadline: the run may take so long, all attempts together; seconds or a timedelta. Default: no limit. It
            holds while the task is deferred too, where `execution_timeout` does not; so a deferrable task has the
            smaller one of both.
        cleanup: what the engine removes at the end: None, All or Unfinished. Default: Unfinished.
        scaling: planned scale steps, e.g. `[{"workers": 4, "at_step": 1000}]`.
        env: plain environment variables of the workers; no secrets, they are written down.
        secrets: variables by reference, e.g. `[{"name": "TOKEN", "source": "env", "key": "WANDB_API_KEY"}]`.
        run_uri: where the run lies: a folder by its absolute path, or `s3://bucket/prefix`, reachable from workers,
            triggerer and Airflow's workers; empty, new, or holding this very run. Default:
            `<root>/<dag_id>/<task_id>/<run_id>[/<map_index>]`; the root is the connection's `run_root`, else
            `[elastic] run_root`, else `AIRFLOW_HOME/elastic-runs`.
        elastic_conn_id: an `elastic` connection. The default one need not exist.
        aws_conn_id: an AWS connection for `s3://` run URIs. Default: that of the elastic connection, else boto3's own
            chain.
        deferrable: False drives the run in a worker slot.
        poll_interval: seconds (or a timedelta) between two looks for requests, reports and checkpoints; failures of
            workers are noticed at once all the same. Default: 2.

    Raises:
        SpecError: at parse time, with every bad value among the parameters that are not templated. What only an engine
            or a launcher knows (`engine_options`, whether a folder exists on the worker's machine), and what templates
            render to, is refused when the task begins, before anything is created.
    """

    template_fields: Sequence[str] = (
        "command",
        "run_uri",
        "working_dir",
        "env",
        "secrets",
        "engine",
        "engine_options",
        "launcher_options",
        "worker_resources",
        "workers",
        "min_workers",
        "max_workers",
        "scaling",
        "elastic_conn_id",
        "aws_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "json",
        "env": "json",
        "engine_options": "json",
        "launcher_options": "json",
        "scaling": "json",
    }
    operator_extra_links = (ElasticRunLink(),)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        command: Sequence[str] | str,
        workers: int | str | None = None,
        min_workers: int | str | None = None,
        max_workers: int | str | None = None,
        procs_per_worker: int | None = None,
        node_unit: int | None = None,
        worker_resources: Mapping[str, str] | None = None,
        launcher: str | None = None,
        launcher_options: Mapping[str, Any] | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        working_dir: str | None = None,
        checkpoint_every_steps: int | None = None,
        checkpoint_every_seconds: float | timedelta | str | None = None,
        keep_checkpoints: int | None = None,
        checkpoint: dict[str, Any] | None = None,
        restart_policy: str | None = None,
        restart_exit_codes: Sequence[int] | None = None,
        backoff_limit: int | None = None,
        no_progress_timeout: float | timedelta | None = None,
        start_timeout: float | timedelta | None = None,
        grace_period: float | timedelta | None = None,
        unattended_timeout: float | timedelta | None = None,
        active_deadline: float | timedelta | None = None,
        cleanup: str | None = None,
        scaling: Sequence[Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[Mapping[str, str]] | None = None,
        run_uri: str | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        deferrable: bool = True,
        poll_interval: float | timedelta = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.workers = workers
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.procs_per_worker = procs_per_worker
        self.node_unit = node_unit
        self.worker_resources = worker_resources
        self.launcher = launcher
        self.launcher_options = launcher_options
        self.engine = engine
        self.engine_options = engine_options
        self.working_dir = working_dir
        self.checkpoint_every_steps = checkpoint_every_steps
        self.checkpoint_every_seconds = checkpoint_every_seconds
        self.keep_checkpoints = keep_checkpoints
        self.checkpoint = checkpoint
        self.restart_policy = restart_policy
        self.restart_exit_codes = restart_exit_codes
        self.backoff_limit = backoff_limit
        self.no_progress_timeout = no_progress_timeout
        self.start_timeout = start_timeout
        self.grace_period = grace_period
        self.unattended_timeout = unattended_timeout
        self.active_deadline = active_deadline
        self.cleanup = cleanup
        self.scaling = scaling
        self.env = env
        self.secrets = secrets
        self.run_uri = run_uri
        self.elastic_conn_id = elastic_conn_id
        self.aws_conn_id = aws_conn_id
        self.deferrable = deferrable
        self.poll_interval: Any = poll_interval
        self._foreground: Foreground | None = None
        self._refuse_early()

    # -- the two halves of the task ------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Create the run, or take over the one that is there; then defer, or drive it here."""
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
        self.log.info("the run %s %s", run.store.uri, standing(state))
        if state.ended:
            return self._conclude(context, run, state)
        if self.deferrable:
            self._defer(run.store.uri, owner)
        observer = TaskObserver(self.log, run.store, xcom_pusher(ti))
        self._foreground = Foreground(hook, run, owner, observer, self.log, self.poll_interval)
        return self._conclude(context, run, self._foreground.drive())

    def resume(self, context: Context, event: Mapping[str, Any], run_uri: str | None = None) -> Any:
        """The trigger has fired. What became of the run is read from the run, not from the event.

        Args:
            context: of the task.
            event: what the trigger has fired.
            run_uri: as the deferral has it; `dag.test()` and `airflow tasks test` hand on the event alone.
        """
        if "error" in event:
            raise AirflowException(str(event["error"]))
        run_uri = run_uri or str(event["run_uri"])
        try:
            run = Run(self._hook().open_store(run_uri))
            state = run.state
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        if not state.ended:  # somebody has reopened it in between
            self._defer(run_uri, str(context["ti"].id))
        return self._conclude(context, run, state)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """End the run where nobody carries it on, and no `on_kill` is called: a late deferral, a dead trigger."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as late:
            self._stop_here(context, "Airflow: the deferral timed out")
            raise AirflowFailException(
                "the task was deferred for longer than it may be: its run has saved and ended"
            ) from late
        except TaskDeferralError:
            ti = context["ti"]
            if ti.try_number > (ti.max_tries or 0):  # no retry that would take it over
                self._stop_here(context, "Airflow: the trigger died, and there is no further try")
            raise

    def on_kill(self) -> None:
        """With deferrable=False: the run saves and ends. (A deferred task has its trigger do the same.)"""
        if self._foreground is not None and not self._foreground.stop("Airflow: the task was ended"):
            self.log.warning("the run is still ending: its workers have been told to save and to end")

    def _defer(self, run_uri: str, owner: str) -> None:
        trigger = ElasticRunTrigger(
            run_uri=run_uri,
            owner=owner,
            elastic_conn_id=self.elastic_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_seconds=self.poll_interval,
        )
        try:
            require_plain(trigger.serialize()[1])
        except InvalidInput as error:
            raise AirflowFailException(str(error)) from error
        # No timeout: the run's own deadline holds in the trigger, ends the run properly, and is not late.
        self.defer(trigger=trigger, method_name="resume", kwargs={"run_uri": run_uri})

    def _conclude(self, context: Context, run: Run, state: RunState) -> dict[str, Any]:
        """The result of a run that succeeded; raises for any other."""
        if state.outcome != "succeeded":
            raise failure(run, state, self.log)
        ti = context["ti"]
        try:
            value = result(run, state)
            for key in ("checkpoint", "metrics"):
                ti.xcom_push(key=key, value=value[key])
            # Last of all: whatever fails before it is repaired by a retry that finds the run done.
            acknowledge(run, str(ti.id))
        except StoreError as error:
            raise AirflowException(str(error)) from error
        return value

    def _stop_here(self, context: Context, why: str) -> None:
        hook, owner = self._hook(), str(context["ti"].id)
        try:
            # Not by the XCom, which people may edit.
            run_uri = current(hook, self._run_uri(context, hook)).uri
            asyncio.run(stop(hook, run_uri, by=why, owner=owner, log=self.log))
        except (ElasticError, TimeoutError) as error:
            self.log.warning("the run could not be ended: %s", error)

    def _hook(self) -> ElasticHook:
        return ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id)

    def _deadline(self) -> Any:
        """Airflow does not enforce execution_timeout while a task is deferred: the run does."""
        return earliest(self.active_deadline, self.execution_timeout if self.deferrable else None)

    def _spec(self, context: Context, hook: ElasticHook) -> RunSpec:
        parameters = {name: getattr(self, name) for name in PATHS}
        parameters["engine"] = self.engine or hook.settings.engine
        parameters["active_deadline"] = self._deadline()
        spec = build_spec(parameters, name=run_name(context["ti"]))
        script = spec.command[0]
        # The DAG's folder is on this machine: pods have the image's.
        if spec.engine == "local" and spec.working_dir is None and not script.startswith(("/", "-")):
            spec = replace(spec, working_dir=self.dag.folder)
        bundle = getattr(context["ti"], "bundle_instance", None)  # whose next version is in another folder
        return replace(spec, source_root=str(bundle.path)) if bundle is not None else spec

    def _run_uri(self, context: Context, hook: ElasticHook) -> str:
        given = bool(self.run_uri)
        root = str(self.run_uri) if given else hook.run_root
        if (problem := uri_problem(root, "run_uri" if given else "run_root")) is not None:
            raise SpecError(problem)
        return root if given else default_uri(root, context["ti"])

    def _refuse_early(self) -> None:
        """Refuse bad values while the DAG is parsed, where Airflow will not change them any more."""
        names = [*PATHS, "run_uri", "elastic_conn_id", "aws_conn_id", "deferrable", "poll_interval"]
        given = {name: getattr(self, name) for name in names}
        late = {name for name in self.template_fields if name in given and is_templated(given[name])}
        if problems := early_problems(given | {"active_deadline": self._deadline()}, late):
            raise SpecError(*problems).below(self.task_id)
        if isinstance(self.poll_interval, timedelta):
            self.poll_interval = self.poll_interval.total_seconds()
