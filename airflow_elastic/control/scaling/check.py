"""Refuses a scaling policy, or standby workers, that could never be carried out, before a run is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.core.scaling.check import check
from airflow_elastic.engines.api import MeasuresCapacity
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Engine
    from airflow_elastic.launchers import Launcher
    from airflow_elastic.spec.run import RunSpec


def refuse_standby(spec: RunSpec, engine: Engine, launcher: Launcher) -> None:
    """Refuse standby workers that could never take the place of another worker.

    Args:
        spec: of a run that is about to be created.
        engine: its engine.
        launcher: its launcher.

    Raises:
        SpecError: the engine, the launcher or the restart policy has no use for them.
    """
    if not spec.workers.standby:
        return
    why = None
    if not engine.capabilities.standby:
        why = f"the engine {spec.engine} cannot replace a lost worker within its job; local and job can"
    elif not launcher.elastic:
        why = (
            f"workers of the launcher {spec.launcher} cannot take over from each other; those of torchrun can"
        )
    elif spec.restart.policy == "Never":
        why = "the restart policy is Never, so no worker takes the place of a lost one"
    elif spec.workers.at_most == 1:
        why = "a run that loses its only worker begins a new job. With more workers (count, or max), one can stand by"
    if why is not None:
        raise SpecError(Problem("workers.standby", spec.workers.standby, f"0: {why}"))


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
