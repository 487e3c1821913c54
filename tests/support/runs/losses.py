"""What a run shows of a lost worker: where it goes on, and what its ranks had done by then."""

from __future__ import annotations

from pathlib import Path

from airflow_elastic.adapters.records import checkpoints
from tests.support.driving import Driven

#: A state every other step, which is left out while the one before is on its way; and what ranks do until they notice.
SLACK = 8


async def goes_on_in_its_job(driven: Driven) -> int:
    """Wait for a step of the second attempt, of a run that saves into memory only. Returns the step it went on from.

    It is in the job of the first attempt, and begins at the newest state of that one: its agents write what they have
    in memory when a worker is lost.
    """
    await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
    from_step = await driven.gone_on()
    first, second = driven.state.attempts
    assert (second.home, second.job) == (1, first.job)
    assert from_step == newest_saved(driven, 1)
    assert from_step >= first.last_step - SLACK > 0
    return from_step


def newest_saved(driven: Driven, attempt: int) -> int:
    """The step of the newest checkpoint that this attempt has written; 0 without one."""
    store = driven.run.store
    steps = [step for step in checkpoints.steps(store) if checkpoints.read(store, step).attempt == attempt]
    return max(steps, default=0)


def steps_done(folder: Path, attempt: int) -> int:
    """The newest step that all ranks of an attempt have done, by what train.py wrote into the folder of `--samples`."""
    last: dict[str, int] = {}
    for file in folder.glob(f"a{attempt}-*"):
        rank = file.name.rpartition("-")[2]
        steps = [int(line.split()[0]) for line in file.read_text().splitlines()]
        last[rank] = max(last.get(rank, 0), *steps)
    return min(last.values())
