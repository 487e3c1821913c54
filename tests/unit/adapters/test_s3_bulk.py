"""Memory that is sent without a copy of it, and uploads in parts that nobody finishes, as servers list them."""

from __future__ import annotations

import os
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from airflow_elastic.adapters.storage.s3.bulk import Block, unfinished


def test_a_block_gives_its_memory_at_once_and_again() -> None:
    memory = memoryview(bytearray(b"abcdef"))[2:]
    block = Block(memory)
    first = block.read(1)
    assert (bytes(first), first.obj is memory.obj, len(block.read())) == (b"cdef", True, 0)
    assert (block.seek(0), bytes(block.read(1)), block.tell(), len(block)) == (0, b"cdef", 4, 4)
    assert (block.seek(-1, os.SEEK_END), bytes(block.read())) == (3, b"f")
    block.seek(1)
    assert (block.seek(1, os.SEEK_CUR), bytes(block.read())) == (2, b"ef")


def answer(server: str, *keys: str) -> dict[str, Any]:
    uploads = [{"Key": key, "UploadId": f"of {key}"} for key in keys]
    return {"Uploads": uploads, "ResponseMetadata": {"HTTPHeaders": {"server": server}}}


@pytest.mark.parametrize(
    ("server", "expected"),
    [("MinIO", ["run/data/dead"]), ("AmazonS3", [])],
)
def test_uploads_are_found_where_a_server_lists_none_below_a_prefix(server: str, expected: list[str]) -> None:
    """As MinIO of February 2026 does: nothing below a prefix that is no whole key, and all where there is none."""
    client = boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        stub.add_response("list_multipart_uploads", answer(server), {"Bucket": "b", "Prefix": "run/data/"})
        if expected:
            there = answer(server, "run/data/dead", "run/other", "elsewhere")
            stub.add_response("list_multipart_uploads", there, {"Bucket": "b"})
        assert [one["Key"] for one in unfinished(client, "b", "run/data/")] == expected
        stub.assert_no_pending_responses()
