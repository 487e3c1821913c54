"""ElasticTrainOperator: one training, as one task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.link import ElasticRunLink
from airflow_elastic.operators.task.drives_run import DrivesRun
from airflow_elastic.operators.task.naming import default_uri, run_name, task_name
from airflow_elastic.operators.task.parameters import (
    PATHS,
    build_spec,
    earliest,
    early_problems,
    is_templated,
    uri_problem,
)
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.spec.run import RunSpec


class ElasticTrainOperator(DrivesRun):
    """Trains a model on several workers, which may join, leave and fail, and succeeds when training is complete.

        ElasticTrainOperator(
            task_id="train",
            command=["train.py", "--epochs", "3"],   # beside the DAG file
            workers=2, min_workers=1, max_workers=4,
            checkpoint_every_seconds=60,
        )

    The task submits the run and defers: while it trains, no worker slot is used. After a failed attempt the next one
    goes on from the newest checkpoint, without using up the task's `retries`. The task's log shows rank 0's output and
    the run's events as they happen.

    **Which run a try works on.** The run is stored at `run_uri`. The default URI names DAG, task, DAG run and map
    index, and is the same for all tries. So a retry, and a task that was cleared, find the existing run:

    - A run that goes on is taken over, without a break in training.
    - A run that failed or was stopped is reopened. It goes on from its newest checkpoint, with its full number of
      restarts and a new deadline.
    - A run that succeeded, but whose result no task has taken, is returned as it is.
    - If the task itself has *succeeded*, clearing it trains again from the start, at `<run_uri>~2`. Scale steps,
      saves and stops that are asked of `run_uri` then go there.
    - A run with another specification (the DAG was edited) is refused. Give another `run_uri`, or start a new DAG run.
      The same DAG in another folder (a new version of its bundle) is the same run.

    **What ends a run early.** If the task or its DAG run is marked failed or succeeded, workers save and end. The run
    of a cleared task goes on for 40 s. If no new try takes it over in that time, it saves and ends; the new try goes
    on from there. (While the DAG is paused, the run keeps its trigger and trains on.) A restarted or killed triggerer
    does not interrupt training. If no triggerer takes over within `unattended_timeout`, workers save and end by
    themselves. The next triggerer starts them again.

    **What fails.** An error of the script, a refusal by the engine, or a stop by a person fails the task without
    further tries. Airflow may retry after other failures: more lost machines than `backoff_limit`, a hang, a passed
    deadline.

    **Where to look.** The tab *Training* of the task instance, also while it is deferred. The page *Elastic runs* has
    all runs. Who may edit task instances of the DAG can scale, save, stop or resume the run there. On the API server,
    `/elastic/runs/<dag_id>/<run_id>/<task_id>?map_index=-1&format=json` is the status document.
    Everyone who may read the task instance may read the tab. The API server reads the run with its own rights, so it
    must reach `run_uri`, below the run root or one of `[elastic] page_roots`. `airflow elastic` shows the same.

    **XComs.** `run_uri`, as soon as the run exists. Every 5 s while it trains: `progress`, with `state`, `attempt`,
    `workers`, `world_size`, `step`, `total_steps`, `loss`, `samples_per_second`, `checkpoint`, `at`, `log_position`.
    The last `progress` has the run's last state. After success: `checkpoint` (`step`, `manifest`, `data`) and
    `metrics`; `return_value` has `run_uri`, `step`, `checkpoint`, `metrics` and `attempts`. With `early_stop` it also
    has `best`: `metric`, `value` and `step`. The events of the task's outlets have the same values, and `world_size`.

    **Callbacks.** `on_restart`, `on_scale`, `on_unhealthy` and `on_checkpoint` are called in the triggerer while the
    task is deferred, as Airflow's own `AsyncCallback`. Each is called at least once for an event, and twice only after
    a crash. The context has `event` (`kind`, `text`, `at`, `attempt`, `step`, `workers`), `run_uri`, `dag_id`,
    `task_id`, `run_id`, `map_index` and `try_number`. The triggerer must be able to import the callback: install it, or
    put it into the folder of plugins. A callback that fails is called three times; training does not wait for it.

    Args:
        command: the script and its arguments, or `["-m", "package.module", …]`. A string is split as in a shell.
        workers: workers (machines or pods) to start with. Default: 1.
        min_workers: fewest workers it may go on with. Default: `workers`.
        max_workers: most workers a scale step may ask for. Default: `workers`.
        procs_per_worker: ranks of each worker. Default: 1.
        node_unit: the number of workers is always a multiple of this. Default: 1.
        standby_workers: further workers that stand by to take the place of a lost one at once. Default: 0.
        worker_resources: resources of each worker, e.g. `{"cpu": "4", "memory": "8Gi"}`.
        launcher: program that starts the ranks: `torchrun`, `torchrun-plain`, `accelerate`, `python`, `dlrover-run`,
            `horovodrun`. Default: torchrun.
        launcher_options: options of that launcher.
        engine: where workers run. Default: the connection's engine, else `local`.
        engine_options: options of that engine.
        working_dir: folder that the command runs in. Default: the folder of the DAG file, for a script with a relative
            path on the local engine; otherwise the engine chooses.
        checkpoint_every_steps: save after so many optimizer steps.
        checkpoint_every_seconds: save when the newest checkpoint is so old: seconds, a timedelta, or "auto". "auto"
            uses the cost of a save and the rate of failures. Default: 300, without `checkpoint_every_steps`.
        keep_checkpoints: committed checkpoints to keep. Default: 3.
        checkpoint: other fields of the specification's `checkpoint`, e.g. `{"keep_best": "min val_loss"}`.
        restart_policy: Never, OnFailure, Always or ExitCode. Default: OnFailure.
        restart_exit_codes: codes that ExitCode restarts, beside 130, 137, 138 and 143.
        backoff_limit: restarts that the run may use. Default: 6. Restarts after a lost machine count; scale steps and
            preemptions do not.
        no_progress_timeout: a run hangs if its step has not advanced for so long; seconds or a timedelta. Default: 600.
        start_timeout: the same until the first step of an attempt. Default: 1800.
        grace_period: time that workers have to save when they must end; seconds or a timedelta. Default: 30.
        unattended_timeout: workers save and end after so long without a triggerer; seconds or a timedelta.
            Default: 1800.
        active_deadline: most time for all attempts together; seconds or a timedelta. Default: no limit. Unlike
            `execution_timeout` it applies while the task is deferred; the smaller of both limits a deferrable task.
        cleanup: what the engine removes at the end: None, All or Unfinished. Default: Unfinished.
        scaling: planned scale steps, e.g. `[{"workers": 4, "at_step": 1000}]`; or a policy by which the run chooses its
            number of workers itself, e.g. `{"policy": {"capacity": {}, "done_by": "06:00"}}`.
        brain: what the memory of past runs may do: manual, single or cluster. Default: nothing.
        env: environment variables of the workers; no secrets, because they are stored as plain text.
        secrets: variables by reference, e.g. `[{"name": "TOKEN", "source": "env", "key": "WANDB_API_KEY"}]`.
        tensorboard: write event files of TensorBoard, in `tensorboard/` below the run URI. Default: False.
        start_from: begin with the weights of a run, of a promoted model, or of a file: its URI. Or a mapping with
            `source`, and `step`, `best`, `optimizer`, `optional`, e.g. `{"source": "s3://models/digits", "optional":
            True}`, which begins from scratch while nothing is promoted. Default: from scratch.
        early_stop: end when a metric has not improved for so many reports, e.g. `val_loss 5`, or `max accuracy 3 by
            0.001`. The task succeeds, and the best checkpoint is kept. Default: never.
        run_uri: where the run is stored: an absolute path of a folder, or `s3://bucket/prefix`. Training workers,
            triggerer and Airflow's workers must reach it. It must be new, empty, or have this run. Default:
            `<root>/<dag_id>/<task_id>/<run_id>[/<map_index>]`; the root is the connection's `run_root`, else
            `[elastic] run_root`, else `AIRFLOW_HOME/elastic-runs`.
        elastic_conn_id: an `elastic` connection. The default one need not exist.
        aws_conn_id: an AWS connection for `s3://` run URIs. Default: that of the elastic connection, else boto3's own
            chain.
        deferrable: False drives the run in a worker slot. Default: True.
        poll_interval: seconds (or a timedelta) between two looks for requests, reports and checkpoints. Failures of
            workers are noticed at once. Default: 2.
        skip_on_stop: skip the task if somebody stops its run, instead of failing it: for a sweep that stops its losers.
            Default: False.
        requeue_on_stop: queue the task again if somebody stops its run: for a training that gives way to others. In its
            turn it goes on from its newest checkpoint. It uses up no `retries`. Default: False.
        on_restart: called when an attempt follows one that was lost or has failed. A function or a notifier class, the
            path of one, `AsyncCallback(Notifier, kwargs={"text": "{{ event.text }}"})`, or a list of these.
        on_scale: called when the number of workers changes.
        on_unhealthy: called when something is wrong for 10 s: a straggler, no new step, a loss that is not a number, …
        on_checkpoint: called for each committed checkpoint.

    Raises:
        SpecError: at parse time, with every bad value among the parameters that are not templated. Values of templates,
            and options that only an engine or a launcher can check, are refused when the task begins.
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
        "start_from",
        "early_stop",
        "elastic_conn_id",
        "aws_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "json",
        "env": "json",
        "engine_options": "json",
        "launcher_options": "json",
        "scaling": "json",
        "start_from": "json",
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
        standby_workers: int | None = None,
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
        scaling: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        brain: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[Mapping[str, str]] | None = None,
        tensorboard: bool | None = None,
        start_from: str | Mapping[str, Any] | None = None,
        early_stop: str | None = None,
        run_uri: str | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        deferrable: bool = True,
        poll_interval: float | timedelta = 2.0,
        skip_on_stop: bool = False,
        requeue_on_stop: bool = False,
        on_restart: Any = None,
        on_scale: Any = None,
        on_unhealthy: Any = None,
        on_checkpoint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.workers = workers
        self.min_workers, self.max_workers = min_workers, max_workers
        self.procs_per_worker = procs_per_worker
        self.node_unit = node_unit
        self.standby_workers = standby_workers
        self.worker_resources = worker_resources
        self.launcher, self.launcher_options = launcher, launcher_options
        self.engine, self.engine_options = engine, engine_options
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
        self.brain = brain
        self.env = env
        self.secrets = secrets
        self.tensorboard = tensorboard
        self.start_from = start_from
        self.early_stop = early_stop
        self.run_uri = run_uri
        self.elastic_conn_id = elastic_conn_id
        self.aws_conn_id = aws_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.skip_on_stop, self.requeue_on_stop = skip_on_stop, requeue_on_stop
        given = {"on_restart": on_restart, "on_scale": on_scale, "on_unhealthy": on_unhealthy}
        self._set_callbacks({**given, "on_checkpoint": on_checkpoint})
        self._refuse_early()

    def dry_run(self) -> None:
        """Log the plan of the training: workers, time and cost, from what past runs have measured. Nothing is started.

        Connections are not read: without the parameter `engine` it is `local`.

        Raises:
            SpecError: a parameter is wrong, or is a template that has not been rendered.
        """
        from airflow_elastic.control.scaling.past_runs import plan_lines  # the DAG is parsed without it

        parameters = {name: getattr(self, name) for name in PATHS}
        dag = self.get_dag()
        name = self.task_id if dag is None else task_name(dag.dag_id, self.task_id)
        specs = [spec := build_spec(parameters, name=name)]
        if dag is not None:  # runs of Airflow are out of a bundle, those of `airflow dags test` need not be
            specs = [replace(spec, source_root=dag.folder), self._in_dag_folder(spec)]
        for line in plan_lines(specs, time.time()):
            self.log.info("%s", line)

    def _deadline(self) -> Any:
        """Airflow does not enforce execution_timeout while a task is deferred: the run does."""
        return earliest(self.active_deadline, self.execution_timeout if self.deferrable else None)

    def _spec(self, context: Context, hook: ElasticHook) -> RunSpec:
        parameters = {name: getattr(self, name) for name in PATHS}
        parameters["engine"] = self.engine or hook.settings.engine
        parameters["engine_options"] = hook.engine_options(parameters["engine"], self.engine_options)
        parameters["active_deadline"] = self._deadline()
        spec = build_spec(parameters, name=run_name(context["ti"]))
        spec = self._in_dag_folder(spec)
        bundle = getattr(context["ti"], "bundle_instance", None)  # its next version is in another folder
        return replace(spec, source_root=str(bundle.path)) if bundle is not None else spec

    def _in_dag_folder(self, spec: RunSpec) -> RunSpec:
        """The same, in the folder of the DAG. Only for local workers: pods do not have it."""
        if spec.engine == "local" and spec.working_dir is None and not spec.command[0].startswith(("/", "-")):
            return replace(spec, working_dir=self.dag.folder)
        return spec

    def _run_uri(self, context: Context, hook: ElasticHook) -> str:
        given = bool(self.run_uri)
        root = str(self.run_uri) if given else hook.run_root
        if (problem := uri_problem(root, "run_uri" if given else "run_root")) is not None:
            raise SpecError(problem)
        return root if given else default_uri(root, context["ti"])

    def _refuse_early(self) -> None:
        """Refuse bad values while the DAG is parsed, except those that Airflow may still change."""
        names = [*PATHS, "run_uri", "elastic_conn_id", "aws_conn_id", "deferrable", "poll_interval"]
        given = {name: getattr(self, name) for name in names}
        late = {name for name in self.template_fields if name in given and is_templated(given[name])}
        problems = early_problems(given | {"active_deadline": self._deadline()}, late)
        if self.skip_on_stop and self.requeue_on_stop:
            problems.append(Problem("requeue_on_stop", True, "False, because skip_on_stop is True"))
        if problems:
            raise SpecError(*problems).below(self.task_id)
        if isinstance(self.poll_interval, timedelta):
            self.poll_interval = self.poll_interval.total_seconds()
