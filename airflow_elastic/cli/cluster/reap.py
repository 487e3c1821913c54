"""`airflow-elastic reap`: remove jobs from a cluster that no run needs any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.help_text import Command
from airflow_elastic.control.reaping import why_reaped
from airflow_elastic.control.runs import Run
from airflow_elastic.engines.api import Job, find_engine
from airflow_elastic.spec.errors import ElasticError, RunMissing

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Access
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.kube.leftovers import Leftover


@click.command(cls=Command)
@click.option("--namespace", default="default", metavar="NAME", help="Where to look.  [default: default]")
@click.option("--kubeconfig", metavar="PATH", help="Which cluster.  [default: KUBECONFIG, ~/.kube/config]")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: its current one]")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def reap(namespace: str, kubeconfig: str | None, context: str | None, dry_run: bool) -> int:
    """Remove jobs from a cluster that no run needs any more.

    These are jobs of runs that have ended, were removed, or are at a later attempt. Each job names its run, and the
    run's journal decides. A live attempt is never touched, nor is the job of a run that cannot be reached. Runs clean
    up after themselves: this command is for jobs that are left when a controller or a run was lost for good.

    Exits 1 if a run cannot be reached, or a job cannot be removed.

    Example:
      airflow-elastic reap --namespace ml --dry-run
    """
    from airflow_elastic.adapters.kube import Access  # a second of imports that no other command pays for

    return asyncio.run(_reap(Access(kubeconfig=kubeconfig, context=context), namespace, dry_run=dry_run))


async def _reap(access: Access, namespace: str, *, dry_run: bool) -> int:
    from airflow_elastic.engines.kube import leftovers

    jobs = await leftovers.find(access, namespace)
    removed = failed = 0
    for job in jobs:
        what = f"{job.engine} {job.namespace}/{job.name}"
        try:
            state = await asyncio.to_thread(_state, job.run_uri)
            why = why_reaped(job.attempt, state)
            if why is None:
                continue
            if not dry_run:
                await _remove(access, job, state)
        except ElasticError as error:
            failed += 1
            click.echo(f"left alone: {what}: {error}", err=True)
            continue
        removed += 1
        click.echo(f"{'would remove' if dry_run else 'removed'} {what}: {why} ({job.run_uri})")
    kept = len(jobs) - removed - failed
    click.echo(
        f"{len(jobs)} elastic jobs in namespace {namespace}: {removed} to go, {kept} needed, {failed} in doubt"
    )
    return 1 if failed else 0


def _state(run_uri: str) -> RunState | None:
    try:
        return Run(open_store(run_uri)).state
    except RunMissing:
        return None


async def _remove(access: Access, job: Leftover, state: RunState | None) -> None:
    from airflow_elastic.engines.kube import leftovers
    from airflow_elastic.engines.kube.engine import KubeEngine

    if state is None or job.attempt > len(state.attempts):
        await leftovers.remove(access, job)
        return
    engine = find_engine(job.engine)
    workers = state.attempts[job.attempt - 1].workers
    if isinstance(engine, KubeEngine):  # in the same way as the run itself
        attempt = Job(job.run_uri, state.spec, job.attempt, workers)
        await type(engine)(access=access).delete(attempt, 0.0)
