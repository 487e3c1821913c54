"""Scripts whose imports fail in a fork: told from the first failure on, they start as without forks."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.run import Health, RestartPolicy, Workers
from tests.support.driving import driving, training

#: It notes how it starts.
SCRIPT = """
import os, signal, sys
forked = "torch" in sys.modules
with open(sys.argv[1], "a") as file:
    file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {'forked' if forked else 'cold'}\\n")
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
"""

#: A library that must be loaded before torch: it ends the process, or raises what torch and the C library do.
FRAGILE = {
    "abort": "if forked: os.abort()",
    "segfault": "if forked: os.kill(os.getpid(), signal.SIGSEGV)",
    "cuda": "if forked: raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...')",
    "tls": "if forked: raise ImportError('libgomp.so.1: cannot allocate memory in static TLS block')",
}

#: What crashes later, or in a process that is no fork.
STEPPED = """
import airflow_elastic.runtime as elastic
run = elastic.init()
run.step()
if not again: os.abort()
run.finish()
"""


def notes(file: Path) -> list[str]:
    return sorted(file.read_text().splitlines())


@pytest.mark.parametrize("how", sorted(FRAGILE))
async def test_it_goes_on_cold(how: str, tmp_path: Path) -> None:
    """At no cost, though no restart was allowed; all later ranks, on all workers, start cold."""
    (tmp_path / "train.py").write_text(SCRIPT + FRAGILE[how] + "\nsys.exit(0 if again else 3)\n")
    told = tmp_path / "told"
    spec = training(
        command=(str(tmp_path / "train.py"), str(told)),
        workers=Workers(2),
        restart=RestartPolicy(backoff_limit=0),
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    first, second = state.attempts
    assert first.failure is not None
    assert first.failure.kind is FailureKind.NEEDS_COLD_START
    assert "launcher_options: {start: cold}" in first.failure.reason
    assert second.failure is None
    assert state.restarts_used == 0
    assert notes(told) == ["0 forked"] * 2 + ["1 cold"] * 2


@pytest.mark.parametrize(
    ("script", "how", "then"),
    [(STEPPED, "fork", "forked"), ("if not again: os.abort()", "cold", "cold")],
    ids=["a crash after the first step", "a crash of a process that is no fork"],
)
async def test_other_crashes_change_nothing(script: str, how: str, then: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + script)
    told = tmp_path / "told"
    spec = training(
        command=(str(tmp_path / "train.py"), str(told)),
        workers=Workers(1),
        launcher_options={"start": how},
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert state.restarts_used == 1
    assert notes(told) == [f"0 {then}", f"1 {then}"]


#: A library that waits for ever for a lock, or for a thread, that only the first process has.
HANGS = """
import airflow_elastic.runtime as elastic
run = elastic.init()
while forked: signal.pause()  # asked for its stacks, it goes on waiting
run.step()
run.finish()
"""


@pytest.mark.parametrize("how", ["fork", "cold"])
async def test_after_a_hang_before_the_first_step_ranks_start_cold(how: str, tmp_path: Path) -> None:
    script = HANGS if how == "fork" else HANGS.replace("while forked", "while not again")
    (tmp_path / "train.py").write_text(SCRIPT + script)
    told = tmp_path / "told"
    spec = training(
        command=(str(tmp_path / "train.py"), str(told)),
        workers=Workers(1),
        health=Health(start_seconds=15.0, grace_seconds=1.0),
        launcher_options={"start": how},
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert failure.kind is FailureKind.NO_PROGRESS
    assert ("in case forks make them hang" in failure.reason) == (how == "fork"), failure.reason
    assert state.restarts_used == 1
    assert notes(told) == [f"0 {'forked' if how == 'fork' else 'cold'}", "1 cold"]


async def test_a_script_that_cannot_start_at_all_is_no_endless_loop(tmp_path: Path) -> None:
    """The free start is the first one only."""
    (tmp_path / "train.py").write_text(SCRIPT + "os.abort()")
    told = tmp_path / "told"
    spec = training(
        command=(str(tmp_path / "train.py"), str(told)),
        workers=Workers(1),
        restart=RestartPolicy(backoff_limit=1, backoff_seconds=0.1),
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "failed"
    kinds = [attempt.failure.kind for attempt in state.attempts if attempt.failure]
    assert kinds == [FailureKind.NEEDS_COLD_START, FailureKind.CRASHED, FailureKind.CRASHED]
    assert notes(told) == ["0 forked", "1 cold", "2 cold"]
