"""Refuses a scaling policy that could never be carried out, before a run is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.core.scaling.check import check
from airflow_elastic.engines.api import MeasuresCapacity
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Engine
    from airflow_elastic.spec.run import RunSpec


def refuse_policy(spec: RunSpec, engine: Engine, now: float) -> None:
    """Refuse what the engine does not know, a time zone or cron expression that is none, and a deadline in the past.

    Args:
        spec: of a run that is about to be created.
        engine: its engine.
        now: epoch seconds.

    Raises:
        SpecError: with all problems.
    """
    check(spec, now)
    policy = spec.scaling_policy
    if policy is not None and policy.capacity is not None and not isinstance(engine, MeasuresCapacity):
        allowed = f"none with the engine {spec.engine}, which does not say what is free"
        raise SpecError(Problem("scaling.policy.capacity", "a rule", allowed))
