"""Indexed Jobs on a real cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.spec.errors import SubmitHeld, SubmitRefused
from airflow_elastic.spec.status import JobStatus, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes.cluster import QUOTAS, ClusterEngine, documented_rights
from tests.support.kubernetes.kube import Account
from tests.support.machine.patience import until_async


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

    async def test_a_quota_of_jobs_holds_one_and_refuses_none(
        self, engine: JobEngine, uri: str, client: Client
    ) -> None:
        namespace = self.options["namespace"]
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
        await client.create(QUOTAS, namespace, quota)

        async def counted() -> bool:
            return "count/jobs.batch" in str((await client.get(QUOTAS, namespace, "none")).get("status"))

        await until_async(counted, "the quota to be counted")
        job = self.job(uri)
        with pytest.raises(SubmitHeld, match=r"for now.*exceeded quota: none"):
            await engine.submit(job)
        await client.patch(QUOTAS, namespace, "none", {"spec": {"hard": {"count/jobs.batch": "1"}}})

        async def taken() -> bool:
            try:
                await engine.submit(job)
            except SubmitHeld:  # the new number is not known everywhere at once
                return False
            return True

        await until_async(taken, "the job to be taken")
        await engine.delete(job, 0.0)

    async def test_doctor_asks_in_the_namespace_that_is_meant(
        self, namespace: str, account: Callable[..., Awaitable[Account]]
    ) -> None:
        engine = JobEngine(access=(await account(*documented_rights("job"))).access)
        here, elsewhere = engine.doctor(namespace)[1], engine.doctor()[1]
        assert here.subject == "job: rights"
        assert here.ok, here
        assert not elsewhere.ok
        assert "lacks in namespace default: create jobs.batch" in elsewhere.text
