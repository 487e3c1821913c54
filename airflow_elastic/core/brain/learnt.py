"""A specification with what past runs have taught."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.spec.brain.proposal import Proposal
    from airflow_elastic.spec.run import RunSpec


def with_learnt(spec: RunSpec, proposals: Iterable[Proposal]) -> tuple[RunSpec, tuple[Proposal, ...]]:
    """The specification that a new run starts with, and the proposals that are in it.

    Hints are left out, because they would change what is trained. So are resources that the specification does not
    limit: a limit is the user's to set. A proposal that the specification does not permit is left out, too.
    """
    taken = []
    for one in proposals:
        try:
            changed = _with(spec, one)
        except SpecError:
            continue
        if changed is not None:
            spec = changed
            taken.append(one)
    return spec, tuple(taken)


def _with(spec: RunSpec, one: Proposal) -> RunSpec | None:
    part, _, name = one.field.partition(".")
    if one.field == "workers.count" and isinstance(one.value, int):
        if not spec.workers.permits(one.value):
            return None
        # What was left out means `count`, and must not follow it.
        least, most = spec.workers.at_least, spec.workers.at_most
        return replace(spec, workers=replace(spec.workers, count=one.value, min=least, max=most))
    if part == "workers" and name.startswith("resources."):
        resource = name.partition(".")[2]
        if resource not in spec.workers.resources:
            return None
        resources = {**spec.workers.resources, resource: str(one.value)}
        return replace(spec, workers=replace(spec.workers, resources=resources))
    if one.field == "checkpoint.every_seconds":
        return replace(spec, checkpoint=replace(spec.checkpoint, every_seconds=float(one.value)))
    if one.field in ("health.start_seconds", "health.no_progress_seconds"):
        return replace(spec, health=replace(spec.health, **{name: float(one.value)}))
    return None
