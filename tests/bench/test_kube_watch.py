"""What watching many jobs on a cluster costs, us and Airflow's own triggers: requests to the API server, and work."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.job import JobKind
from airflow_elastic.engines.kube.options import options_of
from tests.bench.scripts.watching import job, pod
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights
from tests.support.runs.faults import Faults

CHECKOUT = Path(__file__).parents[2]
PROVIDER = "apache-airflow-providers-cncf-kubernetes"
AIRFLOW = ("KubernetesJobTrigger", "KubernetesPodTrigger")
ALL = [{"apiGroups": ["", "batch"], "resources": ["*"], "verbs": ["*"]}]

pytestmark = pytest.mark.skipif(
    not os.environ.get("KUBECONFIG") or not os.environ.get(kube.CLUSTER),
    reason=f"set KUBECONFIG and {kube.CLUSTER} to a cluster for tests whose audit log can be read",
)


@dataclass(frozen=True)
class Found:
    """What one arm used: its share of a processor in each part of the time, bytes, and requests all the while."""

    jobs: int
    cpu: list[float]
    grown: int
    resident: int
    seconds: float
    requests: dict[str, int]

    @property
    def rate(self) -> float:
        """Requests for each job and minute; those to begin with count, too."""
        return sum(self.requests.values()) / self.jobs / (self.seconds / 60)

    @property
    def work(self) -> list[float]:
        """Processor seconds for each job and minute."""
        return [share * 60 / self.jobs for share in self.cpu]


async def create(client: Client, namespace: str, jobs: list[Job]) -> None:
    """The jobs' objects: suspended, and no controller's business, as it is their watching that is measured."""
    limit = asyncio.Semaphore(20)

    async def one(made: Job) -> None:
        body = dict(JobKind().render(made, options_of(made.spec)))[JOBS]
        spec = {**body["spec"], "suspend": True, "managedBy": "airflow-elastic.test/nobody"}
        async with limit:
            await client.create(JOBS, namespace, {**body, "spec": spec})

    await asyncio.gather(*map(one, jobs))


async def run_pods(client: Client, options: dict[str, Any], pods: int) -> None:
    """As many pods that run, and do nothing."""
    container = {"name": "base", "image": options["image"], "command": ["sleep", "1d"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    for number in range(pods):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod(number)}, "spec": spec}
        await client.create(PODS, options["namespace"], body)
    for number in range(pods):
        await kube.phase_of(client, PODS, options["namespace"], pod(number), "Running")


async def follow(arm: str, folder: Path, access: Access, namespace: str, jobs: int, seconds: float) -> Found:
    """Have a process of its own follow so many jobs, as an account of its own."""
    account = await kube.create_account(access, namespace, documented_rights("job") if arm == "ours" else ALL)
    kubeconfig = folder / f"{arm}.json"
    kubeconfig.write_text(account.access.content or "")
    log = folder / f"{arm}.log"
    with log.open("wb") as told:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.bench.scripts.watching", arm, namespace, str(jobs), str(seconds)),
            cwd=CHECKOUT,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "AIRFLOW_HOME": str(folder / "airflow")},
            stdout=asyncio.subprocess.PIPE,
            stderr=told,
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, log.read_text()[-4000:]
    audit = await asyncio.to_thread(Faults(os.environ[kube.CLUSTER]).audit, user=account.user)
    lines = [line.split() for line in audit.splitlines()]
    requests = {" ".join(what): int(times) for times, _, *what in lines}
    return Found(jobs, **json.loads(said.splitlines()[-1]), requests=requests)


async def side_by_side(
    folder: Path,
    access: Access,
    client: Client,
    options: dict[str, Any],
    ours: int,
    theirs: int,
    seconds: float,
) -> dict[str, Found]:
    """All arms at the same time, on the same objects; Airflow's, where it is installed."""
    namespace = options["namespace"]
    arms = {"ours": ours, "floor": ours}
    if theirs and any(distributions(name=PROVIDER)):
        arms |= dict.fromkeys(AIRFLOW, theirs)
        await run_pods(client, options, theirs)
    await create(client, namespace, [job(number, namespace) for number in range(ours)])
    found = await asyncio.gather(
        *(follow(arm, folder, access, namespace, jobs, seconds) for arm, jobs in arms.items())
    )
    return dict(zip(arms, found, strict=True))


def report(arms: dict[str, Found]) -> None:
    for name, found in arms.items():
        print(f"  {name}: {found.jobs} followed for {found.seconds:.0f} s")
        for what, times in found.requests.items():
            print(f"    {times:8} {what}")
        print(f"    requests, for each job and minute        {found.rate:.4f}")
        print(f"    processor time, for each job and minute  {spread(found.work, 'ms', 1000)}")
        print(f"    processor time, all together             {spread(found.cpu, '% of one core', 100)}")
        print(
            f"    memory                                   {found.grown / 2**20:.1f} MiB more than without them, "
            f"{found.resident / 2**20:.0f} MiB in all"
        )
    ours = arms["ours"]
    print(f"  memory of ours, for each job: {ours.grown / ours.jobs / 1024:.1f} KiB")
    for name, found in list(arms.items())[1:]:
        work = median(ours.work) / median(found.work)
        print(f"  ours over {name}: requests {ours.rate / found.rate:.5f}, processor time {work:.5f}")


@pytest.mark.bench
@pytest.mark.timeout(3600)
async def test_watching_many_jobs(
    tmp_path: Path, access: Access, client: Client, pod_options: dict[str, Any]
) -> None:
    ours, theirs, seconds = count("KUBE_JOBS", 1000), count("TRIGGERS", 20), count("SECONDS", 300)
    heading(f"{ours} jobs watched on a cluster, and {theirs} by Airflow's own triggers, for {seconds} s")
    arms = await side_by_side(tmp_path, access, client, pod_options, ours, theirs, seconds)
    report(arms)
    verdict("requests for each job and minute", arms["ours"].rate, 0.06)
    verdict("processor time for each job and minute", 1000 * median(arms["ours"].work), 1.0, " ms")


async def test_a_few_jobs_are_watched_by_all(
    tmp_path: Path, access: Access, client: Client, pod_options: dict[str, Any]
) -> None:
    arms = await side_by_side(tmp_path, access, client, pod_options, 3, 2, 1.0)
    report(arms)
    requests = {name: sum(found.requests.values()) for name, found in arms.items()}
    assert 0 < requests["ours"] <= requests["floor"] + 3
    assert all(requests[name] >= 2 for name in AIRFLOW if name in arms)
