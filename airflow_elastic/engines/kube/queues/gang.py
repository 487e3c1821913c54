"""The size of a gang: the fewest workers to start a job with, and whether it can go on with fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.launchers import find_launcher

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Job


def min_to_start(job: Job) -> int:
    """The fewest workers a job may start with: `workers.min`, or all if the launcher's workers wait for each other."""
    return min(job.workers, job.spec.workers.at_least) if shrinks(job) else job.workers


def shrinks(job: Job) -> bool:
    """Whether the job may ever train with fewer workers than it has."""
    workers = job.spec.workers
    return find_launcher(job.spec.launcher).elastic and workers.at_least < workers.at_most
