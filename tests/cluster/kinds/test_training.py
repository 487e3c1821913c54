"""Training on a real cluster, from the first step to the last, while things happen to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS, SECRETS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, RunSpec, SecretRef, Workers
from tests.support.driving import Driven, driving
from tests.support.kubernetes.cluster import GPU, last_pod, on_every_engine, pod_spec, pods_of, somebody
from tests.support.kubernetes.kube import phase_of
from tests.support.runs.faults import Faults
from tests.support.s3 import S3Server, s3_server


def training(engine: str, options: dict[str, Any], *arguments: str, **changes: Any) -> RunSpec:
    """scripts/train.py on 2 pods, a checkpoint every 5 steps. Below 3 GiB the import of torch itself thrashes."""
    defaults: dict[str, Any] = {
        "launcher": "torchrun",
        "workers": Workers(2, min=1, max=3, resources={"memory": "3Gi"}),
        "checkpoint": CheckpointPolicy(every_steps=5),
        "restart": RestartPolicy(backoff_seconds=0.1),
    }
    return pod_spec(engine, options, "train.py", *arguments, **{**defaults, **changes})


async def lose_a_pod(driven: Driven, client: Client, namespace: str) -> None:
    """Delete the last worker's pod, without grace: as a node does that goes away."""
    await client.delete(PODS, namespace, await last_pod(driven, client, namespace), grace_seconds=0)


@pytest.mark.slow  # of every commit: test_trainjob's
@pytest.mark.parametrize("engine", ["pytorchjob", "job"])
async def test_it_survives_a_lost_pod_grows_and_shrinks_in_place(
    engine: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    found = find_engine(engine)
    assert isinstance(found, KubeEngine)
    if not await client.knows(found.kind.resource):
        pytest.skip(f"install {found.kind.resource.needs} in the cluster to run this")
    spec = training(engine, pod_options, "--epochs=400", "--step-seconds=0.05")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        await lose_a_pod(driven, client, namespace)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.until(lambda: driven.state.attempt.submitted_at, "its submission")
        first, second = driven.state.attempts
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.WORKER_LOST)
        assert second.from_step >= 5
        for workers in (3, 1):
            await driven.at_step(driven.step + 10)
            driven.run.ask_scale(workers, by="test")
            await driven.until(lambda n=workers: world(driven) == n, f"{workers} ranks")  # type: ignore[misc]
        before = driven.step
        await driven.at_step(before + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 1)
    newest = state.checkpoint
    assert newest is not None
    assert newest.step >= before, "it was stopped without saving its last step"
    stretches = state.attempts[1].progress.stretches if state.attempts[1].progress else ()
    assert [stretch.world_size for stretch in stretches] == [2, 3, 1]


#: What a rank says of where it has read its state from: others' memory, and storage.
SOURCES = r"(\S+ \w+) from others' memory, .*? (\S+ \w+) from storage"


def kept_by_buddies(engine: str, options: dict[str, Any]) -> RunSpec:
    """A training whose states are in memory only, each worker's in a neighbour's too."""
    policy = CheckpointPolicy(every_steps=10_000, memory_every_steps=2, buddies=True)
    return training(engine, options, "--epochs=400", "--step-seconds=0.05", "--verbose", checkpoint=policy)


async def goes_on_from_memory(driven: Driven) -> None:
    """The next attempt, after the loss of a worker, and of hardly a step."""
    await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
    from_step = await driven.gone_on()
    assert from_step >= driven.state.attempts[0].last_step - 8 > 0
    await driven.at_step(from_step + 3)


@pytest.mark.siblings("a worker of a cluster's training is lost")
@on_every_engine
async def test_a_pod_that_is_lost_takes_nothing_along_that_its_buddy_has(
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    async with driving(shared_folder / "run", kept_by_buddies(engine_name, pod_options)) as driven:
        await driven.at_step(20)
        assert driven.state.checkpoint is None
        faults.pod(namespace, await last_pod(driven, client, namespace), "signal")
        await goes_on_from_memory(driven)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 1)


@pytest.mark.siblings("a worker of a cluster's training is lost")
async def test_a_pod_is_replaced_beside_the_others_and_reads_from_their_memory(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client, faults: Faults
) -> None:
    """Of a Job: its size has a gap then, and changes as before."""
    spec = kept_by_buddies("job", pod_options)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(20)
        before = {pod["metadata"]["uid"] for pod in await pods_of(driven, client, namespace)}
        faults.pod(namespace, await last_pod(driven, client, namespace), "signal")
        await goes_on_from_memory(driven)
        assert driven.state.attempt.home == 1
        after = await pods_of(driven, client, namespace)
        assert len(before & {pod["metadata"]["uid"] for pod in after}) == 1
        assert [pod["metadata"]["labels"][INDEX_ANNOTATION] for pod in after] == ["0", "2"]
        driven.run.ask_scale(3, by="test")
        await driven.until(lambda: world(driven) == 3, "3 ranks")
        driven.run.ask_scale(1, by="test")
        await driven.until(lambda: world(driven) == 1, "1 rank")
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 1)
    log = (shared_folder / "run" / "logs" / "attempt-0002" / "g02-rank-1.log").read_text()
    found = re.search(SOURCES, log)
    assert found is not None, log
    others, storage = found.groups()
    assert (others != "0 B", storage) == (True, "0 B")


@on_every_engine
async def test_pods_need_no_folder_with_a_script_that_is_part_of_the_run(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    spec = training(engine_name, pod_options, "--epochs=20", "--step-seconds=0.05", "--die-at=60")
    text = Path(spec.command[0]).read_text()  # noqa: ASYNC240 - a small file
    shipped = replace(spec, command=("fit.py", *spec.command[1:]), script=text)
    async with driving(shared_folder / "run", shipped) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("succeeded", 2, 1), state.reason


@pytest.mark.siblings("a worker of a cluster's training is lost")
@on_every_engine
async def test_a_rank_that_dies_costs_no_pod(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    spec = training(engine_name, pod_options, "--epochs=20", "--step-seconds=0.05", "--die-at=60")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        before = await pods_of(driven, client, namespace)
        await driven.until(
            lambda: len(driven.state.attempts) == 2 and driven.step, "a step of the second attempt"
        )
        after = await pods_of(driven, client, namespace)
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("succeeded", 2, 1), state.reason
    assert len(before) == 2
    assert {pod["metadata"]["uid"] for pod in after} == {pod["metadata"]["uid"] for pod in before}
    first, second = state.attempts
    assert first.failure is not None
    assert (first.failure.kind, second.home) == (FailureKind.KILLED, 1)
    assert second.progress is not None
    assert second.progress.stretches[0].from_step >= 50


def world(driven: Driven) -> int:
    progress = driven.run.progress(driven.state)
    stretch = progress.stretches[-1] if progress and progress.stretches else None
    return stretch.world_size if stretch and stretch.first_step_at else 0


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real S3 server that pods reach, too: an imitation in this process would not do."""
    with s3_server() as server:
        if server.kind != "given":
            pytest.skip(
                "set ELASTIC_TEST_S3_ENDPOINT to an S3 server that this machine and pods reach to run this"
            )
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
async def credentials(s3: S3Server, namespace: str, client: Client) -> tuple[SecretRef, ...]:
    """The server's credentials, as a Secret of the cluster."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3"},
        "stringData": {name: s3.env[name] for name in names},
    }
    await client.create(SECRETS, namespace, body)
    return tuple(SecretRef(name, "kubernetes", f"s3/{name}") for name in names)


def on_s3(spec: RunSpec, s3: S3Server) -> RunSpec:
    """The same, with an environment in which pods find the server."""
    port = s3.address.rpartition(":")[2]
    env = {
        "AWS_ENDPOINT_URL": f"http://host.cluster.internal:{port}",
        "AWS_DEFAULT_REGION": s3.env.get("AWS_DEFAULT_REGION", "us-east-1"),
    }
    return RunSpec.from_dict({**spec.to_dict(), "env": {**spec.env, **env}})


async def test_on_s3_it_ends_with_a_verified_model_and_its_output(
    s3: S3Server,
    credentials: tuple[SecretRef, ...],
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
) -> None:
    spec = on_s3(training("job", pod_options, "--epochs=3", "--step-seconds=0.4", secrets=credentials), s3)
    async with driving(f"s3://{s3.bucket}/{namespace}", spec) as driven:
        await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
        await lose_a_pod(driven, client, namespace)
        state = await driven.end()
        output = driven.run.store.get(layout.attempt_logs(2) + layout.rank_log(2, 0))
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert state.checkpoint is not None
    assert b"from step" in (output or b"")
    assert s3.env["AWS_SECRET_ACCESS_KEY"].encode() not in _everything(driven)


@pytest.mark.slow
async def test_what_all_pods_lose_at_once_is_on_their_machines_disk(
    s3: S3Server,
    credentials: tuple[SecretRef, ...],
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """And is read from there: storage has it since the second attempt, too."""
    mounted = {"mount_path": "/mnt/scratch", "host_path": str(shared_folder)}
    options = {**pod_options, "volumes": [*pod_options["volumes"], mounted]}
    policy = CheckpointPolicy(every_steps=10_000, disk="/mnt/scratch", disk_every_steps=2)
    words = ("--epochs=400", "--step-seconds=0.05", "--verbose")
    spec = on_s3(training("job", options, *words, secrets=credentials, checkpoint=policy), s3)
    async with driving(f"s3://{s3.bucket}/{namespace}", spec) as driven:
        await driven.at_step(20)
        assert driven.state.checkpoint is None
        for pod in await pods_of(driven, client, namespace):
            faults.pod(namespace, pod["metadata"]["name"], "signal")
        # The cluster tells of one of them first: the attempt that was to go on with the other comes to nothing.
        await driven.until(lambda: len(driven.state.attempts) > 1 and not driven.state.attempt.home, "a job")
        await driven.gone_on()
        driven.run.ask_stop(by="test")
        state = await driven.end()
        last = state.attempt.number
        output = driven.run.store.get(layout.attempt_logs(last) + layout.rank_log(1, 0)) or b""
    before, after = state.attempts[0], state.attempt
    assert (state.restarts_used, last <= 3) == (1, True)
    assert after.restored_at >= before.last_step - 8 > 0
    (read,) = [line for line in output.decode().splitlines() if "B from disk" in line]
    assert " 0 B from disk" not in read
    assert ", 0 B from storage" in read


def _everything(driven: Driven) -> bytes:
    """The journal and the job's documents, where a secret must not stand."""
    store = driven.run.store
    keys = [entry.key for prefix in (layout.JOURNAL, layout.JOBS) for entry in store.list(prefix)]
    return b"".join(store.get(key) or b"" for key in keys)


@pytest.mark.parametrize(
    "engine_name", ["job", pytest.param("elasticjob", marks=pytest.mark.slow)], indirect=True
)
async def test_with_room_for_the_fewest_it_begins_and_the_others_join_when_they_come(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """A machine of 4 GPUs, 2 of which somebody holds; 2 workers of 2 GPUs each."""
    await client.create(PODS, namespace, somebody(pod_options["image"], gpus=2))
    found = await phase_of(client, PODS, namespace, "somebody", "Running")
    machine = {"kubernetes.io/hostname": found["spec"]["nodeName"]}
    resources = {"memory": "3Gi", GPU: "2"}
    spec = training(
        engine_name,
        {**pod_options, "node_selector": machine},
        "--epochs=400",
        "--step-seconds=0.05",
        workers=Workers(2, min=1, resources=resources, gather_seconds=1.0),
    )
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(10)
        assert driven.state.attempt.members is not None
        assert len(driven.state.attempt.members) == 1
        assert world(driven) == 1
        await client.delete(PODS, namespace, "somebody", grace_seconds=0)
        await driven.until(lambda: world(driven) == 2, "2 ranks")
        assert driven.step >= 10, "it began anew"
        before = driven.step
        await driven.at_step(before + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("stopped", 0), [a.failure for a in state.attempts]
    assert len(state.attempts) == 1
    assert state.attempt.members is None
