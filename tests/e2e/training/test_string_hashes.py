"""The seed of string hashes: Python reads it when it starts, so ranks that were forked from one process share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.spec.run import Workers
from tests.support.driving import driving, training

SCRIPT = """
import json, os, sys
told = {"hash": hash("elastic"), "random": sys.flags.hash_randomization, "seed": os.environ.get("PYTHONHASHSEED")}
if len(sys.argv) > 1:
    told["forked"] = "torch" in sys.modules
    told["worker"] = os.environ["AIRFLOW_ELASTIC_WORKER"]
    with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
        json.dump(told, file)
else:
    print(json.dumps(told))
"""


def plainly(env: dict[str, str]) -> dict[str, Any]:
    """What a plain Python tells."""
    command = [sys.executable, "-c", SCRIPT]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, env={**os.environ, **env}))
    return found


async def ranks(folder: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """What the four ranks of two workers tell."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    spec = training(command=(str(script), str(folder)), workers=Workers(2, procs=2), env=env)
    async with driving(folder / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    found = [json.loads((folder / str(rank)).read_text()) for rank in range(4)]
    assert [one.pop("forked") for one in found] == [True] * 4
    assert [one.pop("worker") for one in found] == ["node-0", "node-0", "node-1", "node-1"]
    return found


@pytest.fixture(autouse=True)
def _without_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def search_path(folder: Path) -> dict[str, str]:
    """A PYTHONPATH of the run: for its sake each worker starts a server of its own."""
    entries = (os.environ.get("PYTHONPATH"), str(folder))
    return {"PYTHONPATH": os.pathsep.join(filter(None, entries))}


@pytest.mark.real_start
@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_seed_of_the_run_is_that_of_its_ranks(own: bool, tmp_path: Path) -> None:
    env = {"PYTHONHASHSEED": "17", **(search_path(tmp_path) if own else {})}
    plain = plainly(env)
    assert plain["seed"] == "17"
    assert await ranks(tmp_path, env) == [plain] * 4


@pytest.mark.real_start
async def test_without_one_ranks_of_one_server_share_a_random_seed(tmp_path: Path) -> None:
    """With the engine `local`, one process is forked for all workers of a run."""
    told = await ranks(tmp_path, {})
    assert told == [told[0]] * 4
    assert (told[0]["random"], told[0]["seed"]) == (1, None)
    assert told[0]["hash"] != plainly({})["hash"]


@pytest.mark.slow
@pytest.mark.real_start
async def test_each_server_has_a_seed_of_its_own(tmp_path: Path) -> None:
    hashes = [one["hash"] for one in await ranks(tmp_path, search_path(tmp_path))]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
