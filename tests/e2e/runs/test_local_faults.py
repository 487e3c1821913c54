"""What else can break around a local run: its host process, its machine, its folder, its storage."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.engines.local.engine import job_files, state_folder
from airflow_elastic.engines.local.host import NodeHost
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.run import Health, RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, driving, left_over, training
from tests.support.s3 import fault_proxy, s3_server

HOLDING = {"command": (str(SCRIPTS / "faults/forever.py"),), "launcher": "python"}


async def test_workers_outlive_their_host_and_a_new_one_starts_more(tmp_path: Path) -> None:
    spec = training("--epochs=100", "--step-seconds=0.02")
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(3)
        agents = [driven.files.agent(0), driven.files.agent(1)]
        host = NodeHost(tmp_path / "local").process()
        assert host is not None
        os.kill(host.pid, signal.SIGKILL)
        before = driven.step
        await driven.at_step(before + 5)
        driven.run.ask_scale(3, by="test")
        await driven.until(lambda: driven.files.agent(2), "a third worker")
        assert [driven.files.agent(0), driven.files.agent(1)] == agents
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("stopped", 1)
    assert left_over(tmp_path) == []


async def test_a_successor_adopts_what_runs(tmp_path: Path) -> None:
    """The controller goes, as a triggerer does that is killed; training never stops."""
    spec = training("--epochs=100", "--step-seconds=0.02")
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(3)
        driven.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven.task
        before, agent = driven.step, driven.files.agent(1)
        successor = Controller(driven.run.store, find_engine("local"), poll_seconds=0.1)
        driven.task = asyncio.create_task(successor.drive())
        await driven.at_step(before + 10)
        assert driven.files.agent(1) == agent
        driven.kill_worker(1)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the successor's own attempt")
        driven.run.ask_stop(by="test")
        assert (await driven.end()).outcome == "stopped"
    assert left_over(tmp_path) == []


async def test_a_run_that_nobody_looks_after_saves_and_ends_and_goes_on_at_no_cost(tmp_path: Path) -> None:
    """As after a task was marked failed while no triggerer held its trigger: Airflow tells nobody."""
    spec = training("--epochs=400", "--step-seconds=0.02", health=Health(unattended_seconds=10.0))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(3)
        driven.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven.task
        successor = Controller(driven.run.store, find_engine("local"), poll_seconds=0.1)
        driven.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        agents = [driven.files.agent(0), driven.files.agent(1)]
        await driven.until(lambda: not any(agent and agent.alive for agent in agents), "the workers' own end")
        driven.task.cancel()
        assert [driven.files.result(i).outcome for i in (0, 1)] == ["unattended", "unattended"]  # type: ignore[union-attr]
        step, newest = driven.step, max(checkpoints.steps(driven.run.store))
        assert newest >= step > 0, "it ended without saving its last step"

        driven.task = asyncio.create_task(successor.drive())
        await driven.until(
            lambda: len(driven.state.attempts) == 2 and driven.state.attempt.submitted_at,
            "the successor's own",
        )
        first, second = driven.state.attempts
        assert (first.cause, second.from_step) == (Cause.UNATTENDED, newest)
        assert driven.state.restarts_used == 0
        driven.run.ask_stop(by="test")
        assert (await driven.end()).outcome == "stopped"
    assert left_over(tmp_path) == []


async def test_of_a_run_that_was_removed_nothing_is_left_for_the_one_begun_in_its_place(
    tmp_path: Path,
) -> None:
    """Where somebody has removed the folder of a run that was at work, and the task runs again."""
    spec = training("--epochs=400", "--step-seconds=0.02")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(3)
        driven.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven.task
        old = left_over(tmp_path / "run")
        (tmp_path / "run").rename(tmp_path / "removed")  # what lives may write there again at any time
        shutil.rmtree(tmp_path / "removed", ignore_errors=True)
        assert any(one.alive for one in old)
        async with driving(tmp_path / "run", training("--epochs=1")) as again:
            await again.at_step(1)
            assert not any(one.alive for one in old)
            state = await again.end()
        assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
    assert left_over(tmp_path / "run") == []


async def test_a_frozen_worker_is_ended_by_the_clock(tmp_path: Path) -> None:
    spec = training("--epochs=6", "--step-seconds=0.05", health=Health(no_progress_seconds=3.0))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(7)
        agent = driven.files.agent(1)
        assert agent is not None
        job = driven.state.attempt.job or ""
        from airflow_elastic.adapters.host import processes

        for process in [agent, *processes.marked("AIRFLOW_ELASTIC_WORKER", "node-1")]:
            if process == agent or process in processes.marked("AIRFLOW_ELASTIC_JOB", job):
                process.send(signal.SIGSTOP)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert failure.kind is FailureKind.NO_PROGRESS
    assert left_over(tmp_path) == []


async def test_workers_of_another_machine_are_not_guessed_at(tmp_path: Path) -> None:
    spec = RunSpec(workers=Workers(1), **HOLDING)  # type: ignore[arg-type]
    job = Job(str(tmp_path), spec, 1, 1)
    engine = find_engine("local")
    files = job_files(job)
    record = JobRecord(job.name, job.run_uri, 1, spec, spec.digest, "elsewhere/boot", "python")
    files.write("job.json", record)
    for call in (engine.submit(job), engine.delete(job, 0.0)):
        with pytest.raises(EngineError, match="run on machine 'elsewhere'"):
            await call
    assert encode(files.read("job.json", JobRecord)) == encode(record)


async def test_after_a_reboot_the_workers_are_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    spec = training("--epochs=4000", "--step-seconds=0.02")
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(6)
        record = driven.files.record
        assert record is not None
        machine = f"{record.machine.partition('/')[0]}/another-boot"
        old = driven.files
        driven.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven.task
        old.write("job.json", JobRecord(**{**_fields(record), "machine": machine}))
        driven.task = asyncio.create_task(
            Controller(driven.run.store, find_engine("local"), poll_seconds=0.1).drive()
        )
        await driven.until(lambda: len(driven.state.attempts) == 2, "a second attempt")
        failure = driven.state.attempts[0].failure
        assert failure is not None
        assert failure.reason == "node-0 was lost (the machine was restarted)"
        driven.run.ask_stop(by="test")
        await driven.end()
    assert left_over(tmp_path) == []


def _fields(record: JobRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


async def test_a_job_whose_folder_is_removed_is_lost_not_forgotten(tmp_path: Path) -> None:
    spec = training("--epochs=20", "--step-seconds=0.02")
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(6)
        shutil.rmtree(driven.files.folder)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert "has been removed" in failure.reason
    assert left_over(tmp_path) == []


def test_job_files_are_made_by_exactly_one(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "job")
    assert files.create("a/b.json", {"x": 1})
    assert not files.create("a/b.json", {"x": 2})
    assert not list(tmp_path.glob("job/a/.b*"))


@pytest.fixture(scope="module")
def s3_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW_ELASTIC_HOME", str(tmp_path_factory.mktemp("home")))
        yield f"s3://{server.bucket}/runs/{os.getpid()}"


@pytest.mark.slow  # of every commit: a rank that dies there, and a whole training on a real server
async def test_a_run_on_s3_survives_a_lost_worker(s3_uri: str) -> None:
    """And its successor reads what it needs from the memory of the other one, whose ranks have their own there."""
    policy = CheckpointPolicy(every_steps=10, keep_last=2, buddies=True)
    words = ("--epochs=8", "--step-seconds=0.05", "--verbose")
    spec = training(*words, checkpoint=policy, workers=Workers(2, procs=2))
    uri = f"{s3_uri}/lost"
    async with driving(uri, spec) as driven:
        await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
        driven.kill_worker(1)
        state = await driven.end()
        assert state.outcome == "succeeded", state.reason
        store = driven.run.store
        assert state.attempts[1].from_step >= 10
        kept = checkpoints.steps(store)
        assert (len(kept), kept[-1]) == (2, 80)
        assert [checkpoints.problems(store, checkpoints.read(store, step)) for step in kept] == [[], []]
        log = open_store(uri).get("logs/attempt-0002/g02-rank-0.log")
        assert log is not None
        assert f"from step {state.attempts[1].restored_at} of 4 ranks" in log.decode()
        for rank in (2, 3):
            newcomers = open_store(uri).get(f"logs/attempt-0002/g02-rank-{rank}.log") or b""
            assert b", 0 B from storage" in newcomers
            assert b", 0 B from others' memory" not in newcomers
        assert list(state_folder(uri).rglob("restore-*")) == [], (
            "what ranks fetched for each other is still there"
        )
    from airflow_elastic.adapters.host import processes

    assert processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", str(state_folder(uri))) == []


async def test_on_s3_a_rank_that_dies_leaves_its_words_and_the_next_one_reads_its_memory(s3_uri: str) -> None:
    spec = training("--epochs=8", "--step-seconds=0.05", "--die-at=40", "--verbose")
    uri = f"{s3_uri}/in-place"
    async with driving(uri, spec) as driven:
        state = await driven.end()
        assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
        assert (state.attempts[1].home, state.restarts_used) == (1, 1)
        store = driven.run.store
        peer = (store.get("logs/attempt-0001/g01-rank-0.log") or b"").decode()
        assert "Traceback" in peer, "the words of the rank that lost its peer were lost"
        assert "0 B from storage" in (store.get("logs/attempt-0002/g02-rank-0.log") or b"").decode()
        kept = checkpoints.steps(store)
        assert [checkpoints.problems(store, checkpoints.read(store, step)) for step in kept] == [[]] * len(
            kept
        )


@pytest.mark.slow  # of every commit: the rule that decides it
async def test_storage_that_is_away_for_whole_attempts_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same error soon after the start twice would end it, if it were one of the script."""
    restart = RestartPolicy(backoff_limit=5, backoff_seconds=0.1)
    monkeypatch.setenv("AIRFLOW_ELASTIC_HOME", str(tmp_path / "home"))
    with s3_server() as server, fault_proxy(server) as proxy:
        for name, value in proxy.server.env.items():
            monkeypatch.setenv(name, value)
        spec = training(
            "--epochs=8", "--step-seconds=0.05", workers=Workers(1, min=1, max=1), restart=restart
        )
        async with driving(f"s3://{server.bucket}/run", spec) as driven:
            await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
            saved = driven.state.checkpoint
            proxy.rules({"do": "reject", "status": 500, "method": "GET", "path": layout.CHECKPOINT_DATA})
            driven.kill_worker(0)
            await driven.until(lambda: len(driven.state.attempts) == 4, "two attempts that cannot read")
            proxy.rules()
            state = await driven.end()
            kept = checkpoints.steps(driven.run.store)
    assert state.outcome == "succeeded", state.reason
    kinds = [attempt.failure.kind for attempt in state.attempts if attempt.failure]
    assert kinds == [FailureKind.WORKER_LOST, FailureKind.STORAGE, FailureKind.STORAGE]
    assert saved is not None
    assert state.attempts[3].restored_at >= saved.step, "what cannot be read is not damaged"
    assert kept[-1] == 80
