"""That forks of one process are what real starts would be, so that what other tests here prove holds for users."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import driving, left_over, training
from tests.support.forking import Zygote, Zygotes, forking
from tests.support.training.parity import ARGUMENTS, Ground

#: What shows that a rank was forked in this way; its port and the objects it shares, which are others each time.
OF_FORKS = {"cmdline", "environ.at_start", "main.depth", "modules", "env.MASTER_PORT", "gc.frozen", "threads"}


async def facts(folder: Path) -> dict[str, Any]:
    """What a rank tells of its start, by facts; run in the same place each time."""
    ground = Ground.lay(folder / "ground")
    told = ground.facts("told")
    command = (str(folder / "ground/project/tools/facts.py"), *ARGUMENTS)
    base = " ".join(os.environ)
    spec = training(
        command=command,
        workers=Workers(1),
        env={"FACTS": str(told), "FACTS_BASE": base},
        restart=RestartPolicy(policy="Never"),
    )
    async with driving(folder / "run", spec) as driven:
        state = await driven.end()
    failure = state.attempt.failure
    assert failure is not None
    assert failure.exit_code == 3, state.reason  # how it ends is one of the facts
    assert left_over(folder / "run") == []
    (only,) = told.glob("*.json")
    return {**json.loads(only.read_text()), "the end": only.with_suffix(".end").read_text().splitlines()}


@pytest.mark.real_start
async def test_a_forked_rank_sees_what_a_real_one_does(zygotes: Zygotes, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    real = await facts(place)
    place.rename(tmp_path / "real")
    place.mkdir()
    with forking(zygotes):
        forked = await facts(place)
    differ = {name for name in real.keys() | forked.keys() if real.get(name) != forked.get(name)}
    odd = {name: (real.get(name), forked.get(name)) for name in sorted(differ - OF_FORKS)}
    assert odd == {}, "\n".join(f"{n}: {str(a)[:300]} {str(b)[:300]}" for n, (a, b) in odd.items())


def test_it_closes_while_another_fork_of_this_process_lives() -> None:
    zygote = Zygote(os.environ)
    hold, release = os.pipe()
    if (other := os.fork()) == 0:
        os.close(release)
        os.read(hold, 1)  # with a copy of the zygote's socket
        os._exit(0)
    try:
        zygote.close()
    finally:
        os.close(release)
        os.waitpid(other, 0)
