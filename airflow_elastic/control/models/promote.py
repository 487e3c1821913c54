"""Promote a checkpoint of a run. Whatever is killed in between, one model is promoted: the old one or the new one."""

from __future__ import annotations

import contextlib
import math
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host.scratch_folders import scratch
from airflow_elastic.adapters.records import checkpoint_retention, promotions
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.empty_place import names
from airflow_elastic.adapters.storage.open import probe
from airflow_elastic.control.models.choose import choose
from airflow_elastic.control.models.publish import SUFFIXES, publish
from airflow_elastic.core.conditions.promotion_rule import PromotionRule, parse_promotion_rule
from airflow_elastic.core.machine import replay
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import ElasticError, InvalidInput, Problem, SpecError, StoreError
from airflow_elastic.spec.models import Compared, Lineage, Promotion, Weights, layout
from airflow_elastic.spec.models.promotion import PROMOTE
from airflow_elastic.spec.validation import choice, not_json

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.control.models.export import Exporter
    from airflow_elastic.spec.checkpoints.manifest import Manifest

_SCRATCH = "elastic-promote-"

#: Objects that may exist where nothing is promoted yet.
_OURS = re.compile(
    rf"{layout.WEIGHTS}[0-9a-f]{{64}}/model\.(safetensors|pt)"  # of a promoter that was killed
    rf"|{layout.PROMOTIONS}[0-9]{{8,}}\.json|{re.escape(layout.CURRENT)}"  # of one that is faster
    r"|\.elastic-probe-[0-9a-f]{16}|(.+/)?\.elastic-tmp-[^/]*|(.+/)?\.nfs[0-9a-f]+",
    re.ASCII | re.DOTALL,
)


class NotBetter(ElasticError):
    """The rule does not hold, so the promoted model stays. The text has the values of both."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to promote, and on which condition.

    Attributes:
        by: who promotes, in words.
        step: of the checkpoint. Default: the newest one, or what `best` says.
        best: `min` or `max` and a metric, e.g. `min val_loss`.
        metrics: of the candidate. Default: those of its checkpoint, with what evaluations have measured since.
        promoted_metrics: of the promoted model. Default: those of its record, with what evaluations have measured.
        promoted_number: the promotion that `promoted_metrics` are of, if that is known.
        rule: e.g. `accuracy > promoted`. Default: none; it is promoted in any case.
        why: in words.
        data: about the data it was trained with, plain JSON.
        code: about its code, beside what the run's journal says.
        format: of the weights: `safetensors` or `pt`. Default: `safetensors`.
        task: the task instance, if one promotes. Another try of it finds what the first one has promoted.
    """

    by: str
    step: int | None = None
    best: str | None = None
    metrics: Mapping[str, float] | None = None
    promoted_metrics: Mapping[str, float] | None = None
    promoted_number: int | None = None
    rule: str | None = None
    why: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    format: str = "safetensors"
    task: str | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"{name}.{key}", value, "a number")
            for name in ("metrics", "promoted_metrics")
            for key, value in (getattr(self, name) or {}).items()
            if isinstance(value, bool) or not isinstance(value, int | float)
        ]
        problems += [Problem(f"data.{path}", value, "plain JSON") for path, value in not_json(self.data)]
        if (allowed := choice(SUFFIXES).broken(self.format)) is not None:
            problems.append(Problem("format", self.format, allowed))
        if problems:
            raise SpecError(*problems)
        if self.rule is not None:
            parse_promotion_rule(self.rule)


def promote(model: Store, run: Store, request: Request, export: Exporter) -> Promotion:
    """Promote a checkpoint: its weights are copied and read back, then one record is created.

    The checkpoint is pinned in its run. A crash leaves at most a pin and weights that the next promotion uses.

    Args:
        model: the model URI.
        run: the run that trained it.
        request: what to promote.
        export: writes the weights into a file.

    Returns:
        The record. It is that of an earlier try, if the same task has promoted the same checkpoint last.

    Raises:
        NotBetter: the rule does not hold.
        InvalidInput: there is no such checkpoint, a metric of the rule is unknown, or the place holds something else.
        StoreError: the storage fails, or cannot hold promotions.
    """
    found = prepare(model, run, request)
    return found if isinstance(found, Promotion) else found.promote(export)


def prepare(model: Store, run: Store, request: Request) -> Candidate | Promotion:
    """Choose the checkpoint and compare it, without any change.

    Returns:
        The candidate; or the record of an earlier try, as for `promote`.

    Raises:
        NotBetter, InvalidInput, StoreError: as for `promote`.
    """
    manifest = choose(run, request.step, request.best)
    before = promotions.current(model)
    if before is not None and _is_earlier_try(before, run, manifest, request):
        promotions.mend(model)
        return before
    candidate = Candidate(model, run, manifest, request, before)
    candidate.judge(before)
    if before is None:
        _refuse_occupied(model)
    return candidate


def _is_earlier_try(before: Promotion, run: Store, manifest: Manifest, request: Request) -> bool:
    same = (before.run, before.step, before.task) == (run.uri, manifest.step, request.task)
    return request.task is not None and before.kind == PROMOTE and same


def _refuse_occupied(model: Store) -> None:
    found = next((name for name in names(model) if not _OURS.fullmatch(name)), None)
    if found is not None:
        raise InvalidInput(
            f"{model.uri} is not empty and holds no promotions (it has {found!r}): give an empty or new folder, "
            f"e.g. {model.uri}/models"
        )


@dataclass(slots=True)
class _Pinned:
    """Whether a pin stays."""

    keep: bool = False


class Candidate:
    """A checkpoint that may replace the promoted model.

    Args:
        model: the model URI.
        run: the run that trained it.
        manifest: of the checkpoint.
        request: what was asked for.
        before: the promotion at that time.
    """

    def __init__(
        self, model: Store, run: Store, manifest: Manifest, request: Request, before: Promotion | None
    ) -> None:
        self._model, self._run, self._request, self._before = model, run, request, before
        self.manifest = manifest
        given = request.metrics
        self.metrics = dict(checkpoint_retention.measured(run, manifest) if given is None else given)
        self.rule: PromotionRule | None = parse_promotion_rule(request.rule) if request.rule else None
        self.compared: Compared | None = None

    def promote(self, export: Exporter) -> Promotion:
        """Promote it. See `promote`."""
        before = self._before
        if before is None:
            probe(self._model)
        with self._pinned() as pinned, scratch(_SCRATCH) as folder:
            path = folder / f"model{SUFFIXES[self._request.format]}"
            export(self._run, self.manifest.step, path)
            weights = publish(self._model, path, self._request.format)
            record = self._record(weights, before)
            while not promotions.create(self._model, record):
                # Somebody has promoted another one in between: compare with that.
                before = promotions.current(self._model)
                self.judge(before)
                record = self._record(weights, before)
            pinned.keep = True
        promotions.mend(self._model)
        return record

    def keep(self, *, by: str) -> None:
        """Pin the checkpoint until it is decided about. Raises CheckpointDamaged if it was removed."""
        checkpoint_retention.pin(self._run, self.manifest.step, by=by)

    def judge(self, before: Promotion | None) -> None:
        """Compare it with the promoted model. Raises NotBetter, and InvalidInput for an unknown metric."""
        number = before.number if before else None
        self.compared = None if before is None else Compared(before.number, self._promoted(before))
        if self.rule is None:
            return
        verdict = self.rule.judge(self.metrics, None if self.compared is None else self.compared.metrics)
        if not verdict.holds:
            stays = f"promotion {number} stays" if number else "nothing is promoted"
            raise NotBetter(
                f"checkpoint {self.manifest.step} of {self._run.uri} does not fulfil `{self.rule}`: "
                f"{'; '.join(verdict.reasons)}; {stays}"
            )

    def _promoted(self, before: Promotion) -> Mapping[str, float]:
        """The metrics of the promoted model. Those that were given count only for the model they are of."""
        given, of = self._request.promoted_metrics, self._request.promoted_number
        if given and of is not None and of != before.number:
            raise InvalidInput(
                f"promoted_metrics are of promotion {of}, but {self._model.uri} has promotion {before.number} now: "
                "evaluate that one"
            )
        if given and before.number == (self._before.number if self._before else None):
            return given
        told = checkpoint_retention.evaluations(self._model, layout.evaluations(before.number))
        return {**before.metrics, **{name: one for each in told for name, one in each.metrics.items()}}

    def _record(self, weights: Weights, before: Promotion | None) -> Promotion:
        """The record that promotes it after that one."""
        request = self._request
        return Promotion(
            number=before.number + 1 if before else 1,
            kind=PROMOTE,
            weights=weights,
            run=self._run.uri,
            step=self.manifest.step,
            metrics={name: float(one) for name, one in self.metrics.items() if math.isfinite(one)},
            by=request.by,
            at=time.time(),
            id=uuid.uuid4().hex,
            rule=str(self.rule) if self.rule else None,
            compared=self.compared,
            why=request.why,
            task=request.task,
            replaces=before.number if before else None,
            lineage=self._lineage(),
        )

    def _lineage(self) -> Lineage:
        state = replay(Journal(self._run).read())
        origin = encode(getattr(state, "origin", None))
        root = state.spec.source_root if state else None
        code = {**({"source_root": root} if root else {}), **self._request.code}
        return Lineage(origin, code, dict(self._request.data))

    @contextlib.contextmanager
    def _pinned(self) -> Iterator[_Pinned]:
        """The checkpoint is pinned meanwhile; and afterwards, if it is promoted."""
        step, told = self.manifest.step, _Pinned()
        by = f"promoted to {self._model.uri}"
        was = checkpoint_retention.is_pinned_by(self._run, step, by)
        try:
            checkpoint_retention.pin(self._run, step, by=by)
        except CheckpointDamaged as error:
            raise InvalidInput(f"{error}: choose another checkpoint") from error
        try:
            yield told
        finally:
            if not was and not told.keep:
                with contextlib.suppress(StoreError):  # it stays then: the next promotion of it finds it
                    checkpoint_retention.release(self._run, step, by=by)
