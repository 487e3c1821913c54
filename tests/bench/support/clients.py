"""Other clients of S3, by which floors are measured, and a bucket for them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import obstore
import pytest

from airflow_elastic.adapters.storage.open import open_store

PART = 16 << 20  # of which obstore is the quickest: with more or less it took up to a third longer
_AT_ONCE = 4


@contextmanager
def a_bucket() -> Iterator[str]:
    """A bucket of a real server, for as long as a bench takes; without a server the bench is skipped."""
    endpoint = os.environ.get("ELASTIC_TEST_S3_ENDPOINT")
    if not endpoint:
        pytest.skip(
            "set ELASTIC_TEST_S3_ENDPOINT, and AWS_* for its credentials, to a real S3 server to run this"
        )
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    name = f"bench-{secrets.token_hex(4)}"
    boto3.client("s3").create_bucket(Bucket=name)
    try:
        yield name
    finally:
        store = open_store(f"s3://{name}")
        store.delete([entry.key for entry in store.list()])
        boto3.client("s3").delete_bucket(Bucket=name)


@contextmanager
def a_run(where: str, folder: Path) -> Iterator[str]:
    """The URI of a run in a `folder`, or in a bucket of its own (`s3`)."""
    if where == "folder":
        yield str(folder / "run")
        return
    with a_bucket() as bucket:
        yield f"s3://{bucket}/run"


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
            unsigned_payload=True,  # as ours, where the server knows checksums
        )

    def put(self, key: str, data: memoryview) -> None:
        """Upload."""
        obstore.put(self._store, key, data, use_multipart=True, chunk_size=PART, max_concurrency=_AT_ONCE)

    def get(self, key: str, start: int, end: int) -> None:
        """Download from one byte to before another.

        Not by its `get_ranges`, which makes one request of parts that touch each other: that took up to half as long
        again.
        """
        asyncio.run(self._get(key, start, end))

    async def _get(self, key: str, start: int, end: int) -> None:
        free = asyncio.Semaphore(_AT_ONCE)

        async def part(at: int) -> None:
            async with free:
                await obstore.get_range_async(self._store, key, start=at, end=min(end, at + PART))

        await asyncio.gather(*(part(at) for at in range(start, end, PART)))
