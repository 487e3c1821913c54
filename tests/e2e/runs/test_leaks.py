"""Deaths leave nothing behind: no memory, no half-written file, no half upload, nothing that was fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support import s3
from tests.support.doom import Doom, Order
from tests.support.driving import driving, left_over, plain, training
from tests.support.machine import leaks

#: Each of two ranks has more to write than one request sends.
WORDS = ("--epochs=2", "--width=125000")


#: The step of the first checkpoint, and of as many later ones as can be written meanwhile.
FIRST = 5


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3Server]:
    with s3.s3_server() as one:
        for name, value in one.env.items():
            monkeypatch.setenv(name, value)
        yield one


def death(phase: str, points: int, victim: str) -> Order:
    """Of the only worker, or its first rank, when there is a checkpoint already."""
    step = FIRST if phase == "restoring" else FIRST + 1
    return Order(phase, points, step, victim, place=0, later=0)


#: In the midst of an upload; while files are fetched; while a state is copied.
UPLOADING, FETCHING = death("persisting", 6, "both"), death("restoring", 0, "rank")
MORE = (death("restoring", 0, "both"), death("staging", 2, "rank"), death("persisting", 3, "agent"))


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param((UPLOADING, FETCHING), id="two"),
        pytest.param(
            (UPLOADING, FETCHING, *MORE), id="more", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]
        ),
    ],
)
async def test_deaths_of_a_run_on_s3_leave_nothing(
    deaths: tuple[Order, ...], server: s3.S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", *WORDS)
    monkeypatch.setenv("AIRFLOW_ELASTIC_HOME", str(tmp_path / "home"))
    doom, memory = Doom(tmp_path / "doom", monkeypatch), leaks.SharedMemory()
    doom.give(*deaths)
    policy, uri = CheckpointPolicy(every_steps=FIRST), f"s3://{server.bucket}/run"
    spec = training(
        *WORDS, f"--out={tmp_path}/out", checkpoint=policy, workers=Workers(1, min=1, max=1, procs=2)
    )
    half: list[str] = []
    async with driving(uri, spec) as driven:
        await driven.until(lambda: doom.hits(), "the first death")
        half = await asyncio.to_thread(leaks.half_uploaded, server)
        state = await driven.end()
    told = f"{doom.hits()}, {state.reason}"
    assert state.outcome == "succeeded", told
    assert [hit["phase"] for hit in doom.hits()] == [one.phase for one in deaths], told
    assert half, "nothing was half uploaded at all"
    assert (tmp_path / "out").read_text() == undisturbed, told
    store = driven.run.store
    assert checkpoint_retention.uncommitted(store, before_attempt=len(state.attempts)) == []
    for step in checkpoints.steps(store):
        assert checkpoints.problems(store, checkpoints.read(store, step)) == []
    assert leaks.half_uploaded(server) == []
    assert leaks.half_written(tmp_path) == []
    assert memory.leaks() == []
    assert left_over(uri) == []
    assert leaks.half_fetched(tmp_path / "home") == []
