"""How long it takes to restore a sharded model at another world size, against one read of its bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.testing.ports import free_port
from tests.bench.clients import a_bucket
from tests.bench.figures import count, heading, median, spread, verdict

MEGABYTES = count("MEGABYTES", 1024)
ROUNDS = count("ROUNDS", 5)
ROOT = Path(__file__).parents[2]


def run(uri: str | Path, world: int, what: str, room: Path) -> dict[str, Any]:
    """The ranks of one world; returns what the first one said."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.scripts.reshard",
        str(uri),
        what,
        str(ROUNDS),
        str(MEGABYTES),
    ]
    shared = {
        **os.environ,
        "BENCH_ROOM": str(room),
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


def compare(where: str, uri: str | Path, how: str, room: Path) -> None:
    for saved, restored in ((2, 2), (2, 4), (4, 2), (3, 5)):
        run(f"{uri}/{saved}-{restored}", saved, "save", room)
        figures = run(f"{uri}/{saved}-{restored}", restored, how, room)
        print(f"  {saved} → {restored}, {where}: one read of the same bytes  {spread(figures['read'])}")
        print(f"         restored, verified          {spread(figures['restore'])}")
        verdict(
            f"{saved} → {restored}, {where}, over one read",
            median(figures["restore"]) / median(figures["read"]),
            1.5,
            "x",
        )


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("how", "where"), [("restore", "page cache"), ("cold", "disk")])
def test_restoring_at_another_world_size(how: str, where: str, tmp_path: Path) -> None:
    heading(f"{MEGABYTES / 1e3:.3f} GB sharded by FSDP2, saved by N ranks and restored by M, {ROUNDS} rounds")
    compare(where, tmp_path, how, tmp_path / "room")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_restoring_at_another_world_size_from_s3(tmp_path: Path) -> None:
    with a_bucket() as bucket:
        heading(
            f"{MEGABYTES / 1e3:.3f} GB sharded by FSDP2, saved by N ranks and restored by M, {ROUNDS} rounds; "
            "an S3 server on this machine"
        )
        compare("S3, obstore", f"s3://{bucket}", "restore", tmp_path)
