"""Two triggerers and a retry at once, on PostgreSQL and a real cluster: never do two attempts of a run live at once.

That is seen from the cluster: its audit log says which Jobs were made and deleted, and a watch which pods there were.
The ranks themselves write down every step that they do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import Cause
from airflow_elastic.engines.kube.render.pod import ATTEMPT_LABEL, MANAGED_BY, MANAGED_LABEL
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import SCRIPTS, documented_rights
from tests.support.machine import postgres
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.faults import Faults
from tests.support.runs.traces import trained_once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(postgres.programs() is None, reason="install PostgreSQL (its initdb) to run this"),
]

DAGS = Path(__file__).parent / "dags"
DAG, TASK = "elastic_pods", "train"


@pytest.fixture
async def airflow_account(account: Callable[..., Awaitable[kube.Account]]) -> kube.Account:
    """Who Airflow is in the cluster, and nobody else."""
    return await account(*documented_rights("job"))


@pytest.fixture
def airflow(airflow_account: kube.Account, tmp_path: Path) -> Iterator[Standalone]:
    """An Airflow on PostgreSQL."""
    connections = {
        "elastic_default": {"conn_type": "elastic", "extra": {"kubernetes_conn_id": "cluster"}},
        "cluster": {"conn_type": "kubernetes", "extra": {"kube_config": airflow_account.access.content}},
    }
    with postgres.postgres() as database:
        env = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}"}
        running = Standalone(tmp_path / "airflow", DAGS, env=env, connections=connections, progress=print)
        with running:
            yield running


class Pods:
    """Which pods of ours there have been, as a watch tells it."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.names: dict[str, set[str]] = {}
        """Of all pods, by their attempts."""
        self.at_once: list[set[str]] = []
        """The attempts that had living pods, after each change."""
        self._living: dict[str, str] = {}

    async def __aenter__(self) -> Pods:
        _, version = await self._client.list(PODS, self._namespace)
        self._task = asyncio.create_task(self._look(version))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled(), f"the watch broke: {self._task.exception()}"

    async def _look(self, version: str) -> None:
        labels = f"{MANAGED_LABEL}={MANAGED_BY}"
        while True:
            watch = self._client.watch(PODS, self._namespace, labels=labels, version=version, seconds=300)
            async with watch as events:
                async for event in events:
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._note(event["type"], event["object"])

    def _note(self, change: str, pod: dict[str, Any]) -> None:
        uid, attempt = pod["metadata"]["uid"], pod["metadata"]["labels"][ATTEMPT_LABEL]
        self.names.setdefault(attempt, set()).add(pod["metadata"]["name"])
        if change == "DELETED" or pod["status"]["phase"] in ("Succeeded", "Failed"):
            self._living.pop(uid, None)
        else:
            self._living[uid] = attempt
        self.at_once.append({*self._living.values()})


class Trouble:
    """A task that trains on the cluster, and what is done to it."""

    def __init__(self, airflow: Standalone, folder: Path) -> None:
        self.airflow, self.uri, self.signs = airflow, folder / "run", folder / "signs"
        self.signs.mkdir()
        self.run = Run(open_store(str(self.uri)))
        self.pids = dict(zip(self._jobs(), airflow.triggerer_pids(), strict=True))
        """Of the triggerers, by the numbers that Airflow gives them."""

    def another_triggerer(self) -> None:
        """Start one, and wait until it has its number."""
        pid = self.airflow.start_triggerer(wait=False)
        new = poll("its number", lambda: self._jobs() - self.pids.keys() or None, timeout=PATIENCE_SECONDS)
        self.pids[new.pop()] = pid

    def _jobs(self) -> set[int]:
        found = self.airflow.rest("GET", "jobs", params={"job_type": "TriggererJob"})["jobs"]
        return {int(job["id"]) for job in found}

    def start(self, engine_options: dict[str, Any]) -> None:
        """Begin training."""
        self.airflow.wait_for_dag(DAG)
        command = [str(SCRIPTS / "steps.py"), "--signs", str(self.signs), "--step-seconds", "0.1"]
        conf = {"run_uri": str(self.uri), "command": command, "engine_options": engine_options}
        self.run_id = self.airflow.trigger(DAG, conf)
        self.wait_deferred()

    def wait_deferred(self) -> None:
        self.airflow.wait_task(DAG, self.run_id, TASK, "deferred", timeout=PATIENCE_SECONDS)

    def wait_steps(self, after: int = 0) -> None:
        """Wait until both ranks of a later attempt than this one train."""

        def probe() -> bool | None:
            trace = self.uri / "trace.jsonl"
            lines = map(json.loads, trace.read_text().splitlines() if trace.exists() else ())
            late = {line["rank"] for line in lines if line["attempt"] > after and line["what"] == "step"}
            return late == {0, 1} or None

        poll(f"an attempt after {after}", probe, timeout=PATIENCE_SECONDS, hint=self._explain)

    def driver(self) -> int:
        """The number of the triggerer that has the task's trigger."""

        def probe() -> int | None:
            job = self.airflow.task(DAG, self.run_id, TASK)["triggerer_job"]
            return None if job is None else int(job["id"])

        return poll("a triggerer to take the trigger", probe, timeout=PATIENCE_SECONDS, hint=self._explain)

    def wait_driven_by_another(self, than: int) -> None:
        poll("another triggerer", lambda: self.driver() != than or None, timeout=PATIENCE_SECONDS)

    def lose_a_worker(self) -> int:
        """One ends, so that whoever drives the run has to begin another attempt. Returns which attempt loses it."""
        attempt = self.run.state.attempt.number
        self.sign(f"die-{attempt}")
        return attempt

    def sign(self, name: str) -> None:
        """Tell the ranks something."""
        (self.signs / name).touch()

    def clear(self) -> None:
        self.airflow.clear_task(DAG, self.run_id, TASK)

    def logs(self) -> str:
        """Of all tries."""
        tries = range(1, int(self.airflow.task(DAG, self.run_id, TASK)["try_number"]) + 1)
        return "\n".join(self.airflow.task_log(DAG, self.run_id, TASK, try_number=n) for n in tries)

    def _explain(self) -> str:
        return f"{self.run.state}; {self.logs()}"


def happen(trouble: Trouble, engine_options: dict[str, Any]) -> None:
    """The run is driven by whom it should not be, again and again, and each time there is something to do."""
    trouble.another_triggerer()
    trouble.start(engine_options)
    trouble.wait_steps()

    # The triggerer dies, so that the other one has its trigger to take over; a worker dies; and a new try begins.
    dead = trouble.driver()
    trouble.airflow.kill_triggerer(trouble.pids[dead])
    lost = trouble.lose_a_worker()
    trouble.clear()
    trouble.wait_steps(after=lost)
    trouble.wait_deferred()
    assert trouble.driver() != dead

    # The triggerer stands still until the other one has taken over, and goes on as if nothing had been: two drive the
    # run, when it loses a worker and gets a new try.
    trouble.another_triggerer()
    frozen = trouble.driver()
    stand_still = processes.family(trouble.pids[frozen])
    for process in stand_still:
        processes.send(process, signal.SIGSTOP)
    trouble.wait_driven_by_another(than=frozen)
    lost = trouble.lose_a_worker()
    trouble.clear()
    for process in stand_still:
        processes.send(process, signal.SIGCONT)
    trouble.wait_steps(after=lost)
    trouble.wait_deferred()

    trouble.sign("enough")
    trouble.airflow.wait_run(DAG, trouble.run_id, timeout=PATIENCE_SECONDS)


async def test_only_one_attempt_lives_whoever_drives_the_run(
    airflow: Standalone,
    airflow_account: kube.Account,
    faults: Faults,
    client: Client,
    namespace: str,
    pod_options: dict[str, Any],
    shared_folder: Path,
) -> None:
    trouble = Trouble(airflow, shared_folder)
    options = {name: value for name, value in pod_options.items() if name != "kubeconfig"}
    async with Pods(client, namespace) as pods:
        await asyncio.to_thread(happen, trouble, options)

    # The run's own record: it lost two attempts, and no other failed.
    state = trouble.run.state
    causes = [attempt.cause for attempt in state.attempts]
    assert (state.outcome, causes.count(Cause.FAILURE)) == ("succeeded", 2), trouble.logs()

    # The cluster's: each Job was created once, when the one before it had been deleted.
    changes = [
        (entry["verb"], entry["objectRef"]["name"])
        for entry in faults.answered(airflow_account.user)
        if entry["objectRef"]["resource"] == "jobs"
        and entry["verb"] in ("create", "delete")
        and entry["responseStatus"]["code"] < 300
    ]
    names = [attempt.job for attempt in state.attempts]
    assert [name for verb, name in changes if verb == "create"] == names
    for before, after in itertools.pairwise(names):
        assert changes.index(("delete", before)) < changes.index(("create", after))
    # Never were there living pods of two attempts, nor a third pod of one.
    assert {attempt: len(names) for attempt, names in pods.names.items()} == {
        str(attempt.number): 2 for attempt in state.attempts
    }
    assert [attempts for attempts in pods.at_once if len(attempts) > 1] == []
    # The ranks' own: no step of an attempt was done twice, and none before the attempt before had done its last.
    trained_once(trouble.uri)
