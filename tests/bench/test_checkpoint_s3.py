"""How fast a checkpoint comes to a real S3 server and back, against the best clients there are, on the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig

from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from tests.bench.support.clients import PART, Obstore, a_bucket
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.test_checkpoint import build, size_of, timed
from tests.support.training.saving import SavingWorker

ROUNDS = count("ROUNDS", 5)


@pytest.fixture
def bucket() -> Iterator[str]:
    with a_bucket() as name:
        yield name


class Boto:
    """boto3's own transfers."""

    def __init__(self, bucket: str, file: Path) -> None:
        self._client, self._bucket, self._file = boto3.client("s3"), bucket, file
        self._config = TransferConfig(
            multipart_chunksize=PART, max_concurrency=8, preferred_transfer_client="classic"
        )

    def put(self) -> None:
        self._client.upload_file(str(self._file), self._bucket, "boto3", Config=self._config)

    def get(self) -> None:
        with Path("/dev/null").open("wb") as sink:
            self._client.download_fileobj(self._bucket, "boto3", sink, Config=self._config)


def restore(store: Store, room: Path, objects: Any) -> None:
    found = Restorer(store, Collectives(0, 1, None), attempt=2, room=WorkerCache(room, 1)).restore(objects)
    assert found is not None


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_to_s3_and_back(bucket: str, tmp_path: Path) -> None:
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB to an S3 server on this machine and back, {ROUNDS} rounds")
    worker = SavingWorker(f"s3://{bucket}/run", keep_last=1)
    worker.saver.save(objects, 1, Position(), reason="script", metrics={})
    worker.persister.flush()
    (large,) = [one.key for one in worker.store.list("checkpoints/data/") if one.key.endswith(".bin")]
    # The same bytes for everybody: a server's disk may write some faster than others.
    memory = memoryview(worker.store.get(large) or b"")
    (file := tmp_path / "file").write_bytes(memory)
    theirs, botos = Obstore(bucket), Boto(bucket, file)
    figures: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        figures.setdefault(name, []).append(seconds)

    for number in range(ROUNDS + 1):
        if number == 1:
            figures.clear()  # the first round opens connections, and does not count
        worker.saver.save(objects, number + 2, Position(), reason="script", metrics={})
        note("obstore put", timed(partial(theirs.put, "obstore", memory)))
        note("boto3 upload_file", timed(botos.put))
        note("ours: one object", timed(partial(worker.store.write, "one", memory)))
        note("ours: committed", timed(worker.persister.flush))
        note("obstore get", timed(partial(theirs.get, "obstore", 0, len(memory))))
        note("boto3 download", timed(botos.get))
        note("ours: restored, verified", timed(partial(restore, worker.store, tmp_path / "room", objects)))
    for name, seconds in figures.items():
        print(f"  {name:26} {spread(seconds)}  {size / 1e6 / median(seconds):.0f} MB/s")
    up = min(median(figures[name]) for name in ("obstore put", "boto3 upload_file"))
    down = min(median(figures[name]) for name in ("obstore get", "boto3 download"))
    verdict(
        "committed, over the best other client's upload", median(figures["ours: committed"]) / up, 1.1, "x"
    )
    verdict("restored, over its download", median(figures["ours: restored, verified"]) / down, 1.1, "x")
