"""How long it takes to restore a sharded model at another world size, against one read of its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.support.clients import a_bucket
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.worlds import of_ranks

MEGABYTES = count("MEGABYTES", 1024)
ROUNDS = count("ROUNDS", 5)


def compare(where: str, uri: str | Path, how: str, room: Path) -> None:
    for saved, restored in ((2, 2), (2, 4), (4, 2), (3, 5)):
        of_ranks(saved, "reshard", f"{uri}/{saved}-{restored}", "save", ROUNDS, MEGABYTES, room)
        figures = of_ranks(restored, "reshard", f"{uri}/{saved}-{restored}", how, ROUNDS, MEGABYTES, room)
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
