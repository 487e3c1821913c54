"""Indexed Jobs on a real cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from airflow_elastic.engines.kube.job import JobEngine
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.status import JobStatus, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.cluster import ClusterEngine, documented_rights
from tests.support.kube import Account


def _running(status: JobStatus) -> set[str]:
    return {worker.name for worker in status.workers if worker.phase is WorkerPhase.RUNNING}


class TestJob(ClusterEngine):
    engine_name = "job"

    async def test_the_documented_rights_are_enough(
        self, uri: str, account: Callable[..., Awaitable[Account]]
    ) -> None:
        engine = JobEngine(access=(await account(*documented_rights("job"))).access)
        self.options = {name: value for name, value in self.options.items() if name != "kubeconfig"}
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await engine.scale(job, 3)
            await until(engine, job, running(3))
            await engine.rejoin(job, 2, lost=(1,))
            await until(engine, job, lambda status: _running(status) == {"node-0", "node-2", "node-3"})

    async def test_without_rights_it_says_which_are_missing(
        self, uri: str, account: Callable[..., Awaitable[Account]]
    ) -> None:
        engine = JobEngine(access=(await account()).access)
        self.options = {name: value for name, value in self.options.items() if name != "kubeconfig"}
        with pytest.raises(SubmitRefused, match=r"create jobs\.batch .*forbidden.*grant"):
            await engine.submit(self.job(uri))

    async def test_doctor_asks_in_the_namespace_that_is_meant(
        self, namespace: str, account: Callable[..., Awaitable[Account]]
    ) -> None:
        engine = JobEngine(access=(await account(*documented_rights("job"))).access)
        here, elsewhere = engine.doctor(namespace)[-1], engine.doctor()[-1]
        assert here.ok, here
        assert not elsewhere.ok
        assert "missing in namespace default: create jobs.batch" in elsewhere.text
