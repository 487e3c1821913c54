"""Large objects in S3: sent and fetched in parts, several at once, each sent with a checksum.

This uses boto3's client, but not its transfers. Those copy the data through Python in small pieces, and hash it for the
signature. Here a part is sent as one block of bytes, so only the network or the server limits the speed
(docs/benchmarks.md).
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from awscrt.checksums import crc32

from airflow_elastic.adapters.storage.s3.client import CONNECTIONS, sends_checksums
from airflow_elastic.adapters.storage.s3.errors import code_of
from airflow_elastic.adapters.storage.s3.stream import Stream
from airflow_elastic.adapters.storage.store import at_once, ignore_progress
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from airflow_elastic.adapters.storage.store import Pace

#: Size of a part. Parts of a file are read into memory, one for each connection. Data in memory is not copied.
PART_BYTES = 16 << 20

_AT_ONCE_BYTES = 512 << 20  # of all parts that are being sent
_MOST_PARTS = 10_000  # of an object: S3's own limit


class Block:
    """Memory for clients that send only `bytes` and files without a copy.

    A read returns everything that is left, even if less was asked for: a memoryview, which goes to the socket as it is.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int = -1) -> memoryview:
        """What is left."""
        at, self._at = self._at, len(self._data)
        return self._data[at:]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Begin again, for another try."""
        self._at = offset + (len(self._data) if whence == os.SEEK_END else self._at * (whence == os.SEEK_CUR))
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at


def send(
    client: Any,
    where: dict[str, str],
    read: Callable[[int, int], bytes | memoryview],
    size: int,
    pace: Pace = at_once,
) -> None:
    """Create or replace an object.

        client: of S3.
        where: bucket and key, in the client's form.
        read: returns the bytes between two positions; called by several threads.
        size: how many bytes there are.
        pace: of the parts.

    Raises the errors of the client. The parts that were sent by then are removed, if the server answers.
    """
    if size <= PART_BYTES:
        with pace(size):
            data = read(0, size)
            client.put_object(**where, Body=_body(data), **_checksum(client, data))
        return
    try:
        _send_parts(client, where, read, size, pace)
    except Exception as exc:
        # The answer to the completing request was lost, and a repetition finds no upload any more.
        if code_of(exc) != "NoSuchUpload":
            raise
        _send_parts(client, where, read, size, pace)


def _send_parts(
    client: Any, where: dict[str, str], read: Callable[[int, int], bytes | memoryview], size: int, pace: Pace
) -> None:
    length = max(PART_BYTES, -(-size // _MOST_PARTS))
    kind = {"ChecksumAlgorithm": "CRC32"} if sends_checksums(client) else {}
    upload = {**where, "UploadId": client.create_multipart_upload(**where, **kind)["UploadId"]}

    failed = False

    def send_part(begin: int) -> dict[str, Any]:
        nonlocal failed
        with pace(min(length, size - begin)):
            if failed:  # while this part waited for its turn
                return {}
            try:
                return send_now(begin)
            except BaseException:
                failed = True
                raise

    def send_now(begin: int) -> dict[str, Any]:
        number = begin // length + 1
        data = read(begin, min(size, begin + length))
        if len(data) < min(length, size - begin):
            raise StoreError(f"{where['Key']} became shorter while it was sent: send it again")
        answer = client.upload_part(**upload, PartNumber=number, Body=_body(data), **_checksum(client, data))
        known = {name: answer[name] for name in ("ETag", "ChecksumCRC32") if name in answer}
        return {**known, "PartNumber": number}

    try:
        with ThreadPoolExecutor(max(1, min(CONNECTIONS, _AT_ONCE_BYTES // length))) as pool:
            parts = list(pool.map(send_part, range(0, size, length)))
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says more; `abandon` finds the parts later
            client.abort_multipart_upload(**upload)
        raise


def _body(data: bytes | memoryview) -> bytes | Block:
    return Block(data) if isinstance(data, memoryview) else data


def _checksum(client: Any, data: bytes | memoryview) -> dict[str, str]:
    """CRC32: every server that knows any checksum knows this one."""
    if not sends_checksums(client):
        return {}
    return {"ChecksumCRC32": base64.b64encode(crc32(data).to_bytes(4, "big")).decode()}


def unfinished(client: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Unfinished uploads in parts below a prefix. Raises the errors of the client.

    MinIO takes a prefix for a whole key, and lists all uploads without one.
    """
    asked = client.get_paginator("list_multipart_uploads")
    found, server = [], ""
    for page in asked.paginate(Bucket=bucket, Prefix=prefix):
        found += page.get("Uploads", ())
        server = page["ResponseMetadata"].get("HTTPHeaders", {}).get("server", "")
    if not found and "minio" in server.lower():
        found = [upload for page in asked.paginate(Bucket=bucket) for upload in page.get("Uploads", ())]
    return [upload for upload in found if str(upload["Key"]).startswith(prefix)]


def fetch(
    client: Any, where: dict[str, str], file: BinaryIO, told: Callable[[int], None] = ignore_progress
) -> None:
    """Copy an object into an empty file. Raises the errors of the client, also if the object changes meanwhile.

    `told` is called with the number of bytes so far; by several threads, one at a time.
    """
    about = client.head_object(**where)
    size, same = int(about["ContentLength"]), {"IfMatch": about["ETag"]}
    os.truncate(file.fileno(), size)
    come, telling = 0, threading.Lock()

    def tell(count: int) -> None:
        nonlocal come
        with telling:
            come += count
            told(come)

    def fetch_part(begin: int) -> None:
        end, room = min(size, begin + PART_BYTES), memoryview(bytearray(1 << 20))
        with contextlib.closing(Stream(lambda: client, {**where, **same}, begin, end - begin)) as part:
            at = begin
            while count := part.readinto(room[: end - at]):
                os.pwrite(file.fileno(), room[:count], at)
                at += count
                tell(count)
        if at < end:
            raise StoreError(f"{where['Key']} became shorter while it was fetched: fetch it again")

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(fetch_part, range(0, size, PART_BYTES)))
