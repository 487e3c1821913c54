"""Ranks of a world that a bench measures: a process each, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_elastic.testing.ports import free_port

ROOT = Path(__file__).parents[3]


def of_ranks(world: int, script: str, *arguments: object) -> dict[str, Any]:
    """Run a script of these benches as so many ranks.

    Args:
        world: how many.
        script: its name.
        arguments: of each of them.

    Returns:
        What the first one printed.
    """
    command = [sys.executable, "-m", f"tests.bench.scripts.{script}", *map(str, arguments)]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
    }
    ranks = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank)}, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    found: dict[str, Any] = json.loads(said[0]) if said[0] else {}
    return found
