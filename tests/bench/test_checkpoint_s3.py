"""How fast a checkpoint comes to a real S3 server and back, against the best clients there are, on the same bytes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
import torch
from boto3.s3.transfer import TransferConfig

from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.saving import Position
from tests.bench.figures import count, heading, median, spread, verdict
from tests.bench.test_checkpoint import build, size_of, timed
from tests.support.saving import Worker

ROUNDS = count("ROUNDS", 5)
PART = 16 << 20


@pytest.fixture
def bucket() -> Iterator[str]:
    endpoint = os.environ.get("ELASTIC_TEST_S3_ENDPOINT")
    if not endpoint:
        pytest.skip(
            "set ELASTIC_TEST_S3_ENDPOINT, and AWS_* for its credentials, to a real S3 server to run this"
        )
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    name = f"bench-{secrets.token_hex(4)}"
    boto3.client("s3").create_bucket(Bucket=name)
    yield name
    store = open_store(f"s3://{name}")
    store.delete([entry.key for entry in store.list()])
    boto3.client("s3").delete_bucket(Bucket=name)


class Obstore:
    """The Rust client, by which reference figures were taken."""

    def __init__(self, bucket: str) -> None:
        session = boto3.session.Session()
        found = session.get_credentials()
        assert found is not None
        self._store = obstore.store.S3Store(
            bucket,
            endpoint=os.environ["AWS_ENDPOINT_URL"],
            access_key_id=found.access_key,
            secret_access_key=found.secret_key,
            region=session.region_name or "us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def put(self, data: memoryview) -> None:
        obstore.put(self._store, "obstore", data, use_multipart=True, chunk_size=PART, max_concurrency=8)

    def get(self, size: int) -> None:
        starts = list(range(0, size, PART))
        ends = [min(size, start + PART) for start in starts]
        obstore.get_ranges(self._store, "obstore", starts=starts, ends=ends)


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
    found = Restorer(store, Ranks(0, 1, None), attempt=2, room=Room(room, 1)).restore(objects)
    assert found is not None


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_to_s3_and_back(bucket: str, tmp_path: Path) -> None:
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB to an S3 server on this machine and back, {ROUNDS} rounds")
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    (file := tmp_path / "file").write_bytes(data.numpy().tobytes())
    memory = memoryview(data.numpy())
    worker = Worker(f"s3://{bucket}/run", keep_last=1)
    theirs, botos = Obstore(bucket), Boto(bucket, file)
    figures: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        figures.setdefault(name, []).append(seconds)

    for number in range(ROUNDS + 1):
        if number == 1:
            figures.clear()  # the first round opens connections, and does not count
        worker.saver.save(objects, number + 1, Position(), reason="script", metrics={})
        note("obstore put", timed(partial(theirs.put, memory)))
        note("boto3 upload_file", timed(botos.put))
        note("ours: one object", timed(partial(worker.store.write, "one", memory)))
        note("ours: committed", timed(worker.persister.flush))
        note("obstore get", timed(partial(theirs.get, size)))
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
