"""Operators that change the promoted model of a model URI."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import TriggerRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, XComNotFound

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.control.models import (
    Candidate,
    NotBetter,
    Request,
    TorchExporter,
    prepare,
    rollback,
)
from airflow_elastic.control.models.publish import SUFFIXES
from airflow_elastic.core.conditions.promotion_rule import parse_promotion_rule
from airflow_elastic.operators.task.approval import Approval, waiting
from airflow_elastic.operators.task.on_model import OnModel, number_problem, who, whole_number
from airflow_elastic.operators.task.parameters import is_missing, is_templated, uri_problem
from airflow_elastic.spec.checkpoint import best_rule
from airflow_elastic.spec.errors import ElasticError, InvalidInput, Problem, RunMissing, SpecError, StoreUnfit
from airflow_elastic.spec.models import Promotion
from airflow_elastic.spec.validation import choice
from airflow_elastic.triggers.task import task_key

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context


class ElasticPromoteOperator(Approval, OnModel):
    """Promotes a checkpoint of a run, if it is better than the promoted model.

        ElasticPromoteOperator(
            task_id="promote",
            model_uri="s3://models/digits",
            source="s3://training/digits",
            rule="accuracy > promoted",
        )

    The checkpoint's weights are copied to the model URI and read back. Then one atomic change makes them the model that
    counts: `promotions/` has a record of each promotion, and the newest one counts. `current.json` is a copy of it. A
    task that is killed leaves the old or the new model, never none, and a retry does not promote twice. If another task
    promotes a model meanwhile, the candidate is compared with that one.

    The result is the record as a dict: `number`, `weights` (`key`, `format`, `size`, `sha256`), `run`, `step`,
    `metrics`, `compared`, `by`, `why`, `at`, `lineage` and more. The events of the task's outlets get it, too. If the
    rule does not hold, the task is skipped, and says both values. It is also skipped if nothing was trained or
    evaluated. A skipped task before it does not skip it: nothing may be promoted yet that could be evaluated.

    Args:
        model_uri: where promoted models are kept: an absolute path of a folder, or `s3://bucket/prefix`.
        source: URI of the run.
        step: of the checkpoint. Default: the newest one.
        best: instead, the best checkpoint by a metric, e.g. `min val_loss` or `max accuracy`.
        metrics: of the candidate, or the result of an ElasticEvaluateOperator. Default: those of the checkpoint, with
            what evaluations have measured since.
        promoted_metrics: of the promoted model, in the same way. Default: those of its record, with what evaluations
            have measured since.
        rule: what must hold, e.g. `accuracy > promoted`, `loss < promoted * 0.99` or `accuracy > promoted + 0.01 and
            latency_ms < 50`. Comparisons with `promoted` hold as long as nothing is promoted. Default: none.
        why: kept beside the model.
        data: about the data it was trained with, as a dict; kept beside the model.
        format: of the file of weights, `safetensors` or `pt`. Default: `safetensors`.
        approve: ask a person first, on Airflow's page *Required actions*, with the metrics of both. Give the task
            `retries` then: with Airflow 3.3 a try fails that is answered before a busy scheduler hears that it waits.
            Default: False.
        approvers: who may answer, as `{"id": …, "name": …}` of Airflow's users. Default: everybody who may edit tasks.
        approval_timeout: after so long without an answer the task is skipped, as if refused; a timedelta. Default: no
            limit.
        python: an interpreter with torch, if Airflow's own has none. Default: Airflow's own.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = (
        *OnModel.template_fields,
        *("source", "step", "best", "metrics", "promoted_metrics", "rule", "data", "python"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "metrics": "json",
        "promoted_metrics": "json",
        "data": "json",
    }

    def __init__(
        self,
        *,
        model_uri: str,
        source: str,
        step: int | str | None = None,
        best: str | None = None,
        metrics: Any = None,
        promoted_metrics: Any = None,
        rule: str | None = None,
        data: Mapping[str, Any] | None = None,
        format: str = "safetensors",
        approve: bool = False,
        approvers: Sequence[Mapping[str, str]] | None = None,
        approval_timeout: timedelta | None = None,
        python: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model_uri=model_uri,
            **{"trigger_rule": TriggerRule.NONE_FAILED, **kwargs},
        )
        self.source, self.step, self.best = source, step, best
        self.metrics, self.promoted_metrics = metrics, promoted_metrics
        self.rule, self.data, self.format, self.python = rule, data, format, python
        self.approve, self.approvers, self.approval_timeout = approve, approvers, approval_timeout
        self.wants_metrics = metrics is not None
        self._refuse_early()

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """As any operator does; without an XCom that it needs there is nothing to promote."""
        try:
            super().render_template_fields(context, jinja_env)
        except XComNotFound as error:
            raise AirflowSkipException(f"nothing to promote: {error}") from error

    def execute(self, context: Context) -> dict[str, Any]:
        """Compare and promote; or ask a person first."""
        candidate, request = self._prepared(context)
        if isinstance(candidate, Promotion):
            self.log.info(
                "%s", f"promotion {candidate.number} of {self.model_uri} was made by an earlier try"
            )
            return self._told(context, candidate)
        if self.approve:
            self._ask(context, candidate, self.model_uri, str(self.source))
        return self._promote(context, candidate, request)

    def decided(self, context: Context, event: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Promote after a person has agreed, if the rule still holds. Raises AirflowSkipException if nobody has."""
        try:
            person = self._agreed(event)
            self.step, self.best = step, None
            candidate, request = self._prepared(context, by=f"{person}, by {who(context['ti'])}")
            if isinstance(candidate, Promotion):
                return self._told(context, candidate)
            return self._promote(context, candidate, request)
        finally:  # what is promoted has a pin of its own by now
            with contextlib.suppress(ElasticError):
                source = self._hook().open_store(str(self.source))
                checkpoint_retention.release(source, step, by=waiting(context["ti"]))

    def _prepared(self, context: Context, by: str | None = None) -> tuple[Candidate | Promotion, Request]:
        if is_missing(self.source):
            raise AirflowSkipException(
                f"nothing to promote: source is {self.source!r}, so the task that should name the run was skipped"
            )
        if self.wants_metrics and is_missing(self.metrics):
            raise AirflowSkipException(
                "nothing to promote: metrics is None, so the task that should measure was skipped"
            )
        if (problem := uri_problem(self.source, "source")) is not None:
            raise AirflowFailException(str(problem))
        run, model = self._hook().open_store(str(self.source)), self._model()
        try:
            request = self._request(context, by or who(context["ti"]))
            return prepare(model, run, request), request
        except NotBetter as error:
            raise AirflowSkipException(str(error)) from error
        except (SpecError, StoreUnfit) as error:
            raise AirflowFailException(str(error)) from error
        except ElasticError as error:
            raise _failed(error) from error

    def _request(self, context: Context, by: str) -> Request:
        metrics, _ = _measured("metrics", self.metrics)
        promoted, number = _measured("promoted_metrics", self.promoted_metrics)
        bundle = getattr(context["ti"], "bundle_instance", None)
        code = {"bundle": getattr(bundle, "name", None), "bundle_version": getattr(bundle, "version", None)}
        return Request(
            by,
            step=whole_number("step", self.step, 0),
            best=self.best or None,
            metrics=metrics,
            promoted_metrics=promoted,
            promoted_number=number,
            rule=self.rule or None,
            why=self.why or None,
            data=self.data or {},
            code={name: str(value) for name, value in code.items() if value},
            format=self.format,
            task=task_key(context["ti"]),
        )

    def _promote(self, context: Context, candidate: Candidate, request: Request) -> dict[str, Any]:
        hook = self._hook()
        environment = hook.worker_environment(str(self.source))
        export = TorchExporter(environment=environment)
        try:
            record = candidate.promote(replace(export, python=self.python) if self.python else export)
        except NotBetter as error:
            raise AirflowSkipException(str(error)) from error
        except ElasticError as error:
            raise _failed(error) from error
        self.log.info(
            "%s", f"promotion {record.number} of {self.model_uri}: checkpoint {record.step} of {record.run}"
        )
        return self._told(context, record)

    def _refuse_early(self) -> None:
        problems: list[Problem | None] = []
        if not is_templated(self.source) and self.source is not None:
            problems.append(uri_problem(self.source, "source"))
        if (allowed := choice(SUFFIXES).broken(self.format)) is not None:
            problems.append(Problem("format", self.format, allowed))
        if not isinstance(self.approve, bool):
            problems.append(Problem("approve", self.approve, "True or False"))
        if self.best and not is_templated(self.best) and (allowed := best_rule.broken(self.best)) is not None:
            problems.append(Problem("best", self.best, allowed))
        if self.step is not None and self.best is not None:
            problems.append(
                Problem("best", self.best, "none with `step`: one of them chooses the checkpoint")
            )
        if found := [one for one in problems if one is not None]:
            raise SpecError(*found).below(self.task_id)
        if self.rule is not None and not is_templated(self.rule):
            try:
                parse_promotion_rule(self.rule)
            except SpecError as error:
                raise error.below(self.task_id) from None


class ElasticRollbackOperator(OnModel):
    """Makes an earlier promoted model the one that counts again.

        ElasticRollbackOperator(task_id="back", model_uri="s3://models/digits", why="errors in production")

    Its weights are read back first. Without `to` it is the model before the one that counts; what a rollback has left
    behind is not chosen again. The result is the new record, as that of ElasticPromoteOperator. A retry does not go
    back twice.

    Args:
        model_uri: where promoted models are kept.
        to: number of the promotion. Default: the model before.
        why: kept beside the model.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = (*OnModel.template_fields, "to")

    def __init__(self, *, to: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.to = to
        if not is_templated(to) and (problem := number_problem("to", to, 1)) is not None:
            raise SpecError(problem).below(self.task_id)

    def execute(self, context: Context) -> dict[str, Any]:
        """Go back."""
        ti, to = context["ti"], whole_number("to", self.to, 1)
        try:
            record = rollback(self._model(), by=who(ti), why=self.why, to=to, task=task_key(ti))
        except ElasticError as error:
            raise _failed(error) from error
        self.log.info(
            "%s", f"promotion {record.number} of {self.model_uri} is the model of {record.restores} again"
        )
        return self._told(context, record)


def _measured(name: str, value: Any) -> tuple[Mapping[str, float] | None, int | None]:
    """Metrics, and the promotion they are of if that is known. The result of an evaluation has both."""
    number = None
    if isinstance(value, Mapping) and isinstance(value.get("metrics"), Mapping):
        value, number = value["metrics"], value.get("promotion")
    if is_missing(value):
        return None, None
    if not isinstance(value, Mapping):
        raise SpecError(
            Problem(name, value, "a dict of numbers, or the result of an ElasticEvaluateOperator")
        )
    return {metric: _number(one) for metric, one in value.items()}, number


def _number(value: Any) -> Any:
    """A number that a template has rendered to text, as a number; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _failed(error: ElasticError) -> AirflowException:
    """Another try cannot help if the request itself is wrong. A run may still get its first checkpoint."""
    is_final = isinstance(error, InvalidInput | StoreUnfit) and not isinstance(error, RunMissing)
    return AirflowFailException(str(error)) if is_final else AirflowException(str(error))
