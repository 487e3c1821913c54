"""ElasticEvaluateOperator: one evaluation of a checkpoint or a promoted model, as one task."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    XComNotFound,
)

from airflow_elastic.control.models.evaluations import let_go, note
from airflow_elastic.control.models.start_from import resolve
from airflow_elastic.operators.task.on_model import number_problem, whole_number
from airflow_elastic.operators.task.parameters import is_missing, is_templated
from airflow_elastic.operators.train import ElasticTrainOperator
from airflow_elastic.spec.errors import CheckpointMissing, ElasticError, InvalidInput, Problem, SpecError
from airflow_elastic.spec.models.start import StartFrom

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.control.runs import Run
    from airflow_elastic.core.state import RunState
    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.spec.run import RunSpec


class ElasticEvaluateOperator(ElasticTrainOperator):
    """Evaluates a checkpoint of a run, or a promoted model, on any engine.

        ElasticEvaluateOperator(task_id="new", command=["evaluate.py"], source="s3://training/mnist")

    The script is like one that trains, without training. `run.restore(model)` loads the checkpoint, and
    `run.finish(accuracy=0.93)` returns the metrics. Nothing is saved. If it takes longer than `start_timeout`, the
    script calls `run.step()` after each batch, which says that it goes on. The evaluation is a run of its own: it is
    deferred, restarted and shown like a training.

    The checkpoint is pinned meanwhile. The result is a dict with `metrics`, `source`, `step`, `promotion` (None for a
    checkpoint) and `run_uri` (of the evaluation). Each of these is an XCom, too. The metrics are also recorded beside
    the checkpoint or the promotion, where `best`, ElasticPromoteOperator and `airflow-elastic promote` find them.

    Args:
        source: URI of a run, or of a model (its promoted model), or a file of weights.
        step: of a run: the checkpoint of this step. Default: the newest one.
        best: of a run: the checkpoint with the best value of a metric, e.g. `max accuracy`.
        optional: skip the task if there is no checkpoint or promoted model yet, or the run has removed that of `step`.
            Default: False, the task fails.
        kwargs: all other arguments of ElasticTrainOperator, except `start_from`.

    Raises:
        SpecError: at parse time, as for ElasticTrainOperator.
    """

    template_fields: Sequence[str] = (
        *(name for name in ElasticTrainOperator.template_fields if name != "start_from"),
        *("source", "step", "best"),
    )
    ui_color = "#fef7e0"

    def __init__(
        self,
        *,
        source: str,
        step: int | str | None = None,
        best: str | None = None,
        optional: bool = False,
        **kwargs: Any,
    ) -> None:
        if "start_from" in kwargs:
            allowed = "none: source, step and best say what to evaluate"
            raise SpecError(Problem("start_from", kwargs["start_from"], allowed)).below(
                str(kwargs.get("task_id"))
            )
        # Without a result each of its keys is None for other tasks, instead of an error.
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.source, self.step, self.best, self.optional = source, step, best, optional
        self._refuse_start()

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """As any operator does; without the XCom that names the source there is nothing to evaluate."""
        try:
            super().render_template_fields(context, jinja_env)
        except XComNotFound as error:
            raise AirflowSkipException(f"nothing to evaluate: {error}") from error

    def execute(self, context: Context) -> Any:
        """Evaluate, or skip the task if there is nothing yet."""
        if is_missing(self.source):
            raise AirflowSkipException(
                f"nothing to evaluate: source is {self.source!r}, so the task that should name it was skipped"
            )
        try:
            if self.optional:
                self._skip_if_nothing()
            return super().execute(context)
        except AirflowFailException as error:
            if self.optional and isinstance(error.__cause__, CheckpointMissing):
                raise AirflowSkipException(f"nothing to evaluate: {error}") from error
            raise

    def _refuse_start(self) -> None:
        given: dict[str, Any] = {"source": self.source, "step": self.step, "best": self.best}
        fixed = {name: one for name, one in given.items() if not is_templated(one) and not is_missing(one)}
        if (problem := number_problem("step", fixed.get("step"), 0)) is not None:
            raise SpecError(problem).below(self.task_id)
        try:
            StartFrom(
                fixed.get("source", "/"),
                whole_number("step", fixed.get("step"), 0),
                fixed.get("best") or None,
            )
        except SpecError as error:
            raise error.below(self.task_id) from None

    def _skip_if_nothing(self) -> None:
        try:
            found = resolve(self._start(optional=True), self._hook().open_store)
        except InvalidInput as error:
            raise AirflowFailException(str(error)) from error
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        if found is None:
            raise AirflowSkipException(
                f"nothing to evaluate: {self.source} has no checkpoint or promoted model yet"
            )

    def _start(self, *, optional: bool = False) -> StartFrom:
        return StartFrom(
            str(self.source), whole_number("step", self.step, 0), self.best or None, optional=optional
        )

    def _spec(self, context: Context, hook: ElasticHook) -> RunSpec:
        spec = super()._spec(context, hook)
        return replace(spec, start_from=self._start(), evaluation=True)

    def _conclude(self, context: Context, run: Run, state: RunState) -> dict[str, Any]:
        origin, hook, ti = state.origin, self._hook(), context["ti"]
        try:
            value = super()._conclude(context, run, state)
        except AirflowRescheduleException:  # the same checkpoint is evaluated later
            raise
        except AirflowException as error:
            is_last = isinstance(error, AirflowFailException) or ti.try_number > (ti.max_tries or 0)
            if origin is not None and is_last:
                with contextlib.suppress(ElasticError):
                    let_go(origin, hook.open_store, by=run.store.uri)
            raise
        metrics: Mapping[str, float] = value["metrics"]
        if origin is not None:
            try:
                note(origin, metrics, hook.open_store, by=run.store.uri)
                let_go(origin, hook.open_store, by=run.store.uri)
            except ElasticError as error:  # the metrics are the task's result in any case
                self.log.warning("%s", f"the metrics could not be recorded beside {origin.words}: {error}")
        return {
            "metrics": dict(metrics),
            "source": str(self.source),
            "step": origin.step if origin else None,
            "promotion": origin.promotion if origin else None,
            "run_uri": run.store.uri,
        }
