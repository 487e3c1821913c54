"""A Job of batch/v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.commands import Scope
from airflow_elastic.engines.kube.manifests.native import take_scheduling
from airflow_elastic.engines.kube.manifests.pods import BY_CONTROLLER, take_template
from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.spec.errors import ABSENT

NOT_NOW = "false: a run begins when it is submitted, and waits in a queue where one is named"


def read_job(part: Section, run: RunBuilder, others: Sequence[Mapping[str, Any]] = ()) -> None:
    """All its pods train together, and have numbers."""
    run.plain["engine"] = "job"
    parallelism, completions = part.take("parallelism"), part.take("completions")
    count = 1 if parallelism is None else parallelism
    if count != (1 if completions is None else completions):
        allowed = f"as parallelism, {count}: all workers train together"
        if completions is None:
            part.refuse("completions", ABSENT, f"this field is required; allowed: {allowed}")
        else:
            part.refuse("completions", completions, allowed)
    run.number(count, part.at("parallelism"))
    part.only("completionMode", "Indexed", "NonIndexed", why="Indexed or NonIndexed")
    part.only("suspend", False, why=NOT_NOW)
    part.only("podReplacementPolicy", "TerminatingOrFailed", why="nothing: the run replaces what it loses")
    part.only("manualSelector", False, why="false: each attempt's Job selects its own pods")
    selector = part.data.get("selector") or {}
    if {*selector} <= {"matchLabels"} and {*selector.get("matchLabels", {})} <= {*BY_CONTROLLER}:
        part.drop("selector")  # written by the controller
    run.limits(part)
    run.option("ttl_seconds", part, "ttlSecondsAfterFinished")
    take_template(
        part.part("template"), run, "trainer", operator=Scope(unknown=frozenset({"JOB_COMPLETION_INDEX"}))
    )
    take_scheduling(part, run)
