"""A store in a bucket of Amazon S3, or of a server with the same protocol, including conditional writes."""

from __future__ import annotations

import contextlib
import copy
import os
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.durable_files import fsync_folder, make_folder, sync, temp_file
from airflow_elastic.adapters.storage.folder_errors import store_error as folder_error
from airflow_elastic.adapters.storage.keys import check_key, check_prefix, check_range, key_problem, scrub
from airflow_elastic.adapters.storage.s3 import bulk
from airflow_elastic.adapters.storage.s3.client import Clients
from airflow_elastic.adapters.storage.s3.errors import (
    MISSING,
    code_of,
    is_client_error,
    is_missing,
    status_of,
    store_error,
)
from airflow_elastic.adapters.storage.s3.ranges import Ranges
from airflow_elastic.adapters.storage.s3.stream import ROUNDS, Stream, ask, back_off
from airflow_elastic.adapters.storage.store import Entry, at_once, ignore_progress
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from airflow_elastic.adapters.storage.s3.client import ClientFactory
    from airflow_elastic.adapters.storage.store import Pace, Reader

_BATCH = 1000  # keys that one DeleteObjects takes
# Answers (409) when another writer, or on versitygw a delete in the same folder, was in the way.
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "ExistingObjectIsDirectory"}
_NO_BATCHES = {"NotImplemented", "MethodNotAllowed", "MissingContentMD5"}  # nor what servers lack besides


class S3Store:
    """Objects below `prefix` ("": the whole bucket).

    Endpoint, credentials and region come from boto3's usual chain, such as AWS_PROFILE or a pod's role, unless
    there is a `client_factory`. It is a boto3 `Session`, or a callable that gets a botocore `Config` with our timeouts
    and retries and returns an S3 client. It is called once in each process, so again after a fork.

    Safe to use from several threads. A process that is killed while it sends a large object leaves the parts that it
    has sent: `abandon` finds and removes them. For a server without checksums, set
    AWS_REQUEST_CHECKSUM_CALCULATION=when_required.
    """

    def __init__(self, bucket: str, prefix: str = "", *, client_factory: ClientFactory | None = None) -> None:
        self._bucket = bucket
        self._below = f"{check_key(prefix)}/" if prefix else ""
        self._clients, self._bulk = Clients(client_factory), Clients(client_factory, bulk=True)
        self._ranges = Ranges()

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    def sharing(self, other: S3Store) -> S3Store:
        """The same objects, with the client of another store: to make one takes a tenth of a second."""
        made = copy.copy(self)
        made._clients, made._bulk = other._clients, other._bulk
        return made

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._below}".rstrip("/")

    @property
    def endpoint(self) -> str:
        """The server's URL without any user or password in it. Raises StoreError like every other method."""
        with self._told("open", ""):
            return scrub(str(self._clients.get().meta.endpoint_url))

    def get(self, key: str) -> bytes | None:
        return self._read(key)

    def read_from(self, key: str, start: int, limit: int = 1 << 20) -> bytes:
        check_range(start, limit)
        check_key(key)
        if not limit:
            return b""
        return (self._read(key, start, limit) or b"")[:limit]

    @contextlib.contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        check_range(start, size)
        stream = Stream(self._bulk.get, self._at(key), start, size, self._ranges)
        with self._told("read", key), contextlib.closing(stream):
            yield stream

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        with self._told("write", key):
            self._insist(lambda: self._clients.get().put_object(**self._at(key), Body=data))

    def write(self, key: str, data: memoryview, *, pace: Pace = at_once) -> None:
        self._send("write", key, lambda begin, end: data[begin:end], len(data), pace)

    def _send(
        self,
        doing: str,
        key: str,
        read: Callable[[int, int], bytes | memoryview],
        size: int,
        pace: Pace = at_once,
    ) -> None:
        where = self._at(key)
        with self._told(doing, key):
            self._insist(lambda: bulk.send(self._bulk.get(), where, read, size, pace))

    def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`. If it raises, the object may or may not be there: repeat the call to find out."""

        def send() -> None:
            self._clients.get().put_object(**self._at(key), Body=data, IfNoneMatch="*")

        for round_ in range(ROUNDS):
            with self._told("create", key):
                try:
                    self._insist(send)
                except Exception as exc:
                    if status_of(exc) != 412:
                        raise
                else:
                    return True
            # A lost answer makes botocore repeat our own put, and the repetition also gets 412: compare the content.
            if (stored := self.get(key)) is not None:
                return stored == data
            back_off(round_)  # a delete came between
        raise StoreError(
            f"{self.uri}: {key!r} was made and removed {ROUNDS} times while we tried to create it; "
            "find out who else writes there, then try again"
        )

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        found = [Entry(name, size) for name, size in self._listed(prefix) if not key_problem(name)]
        return sorted(found, key=lambda entry: entry.key)  # S3 directory buckets list in no order

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """The parts of names between `prefix`, which is "" or ends with `/`, and the next `/`, sorted."""
        full = self._below + check_prefix(prefix)
        with self._told("list", prefix):
            pager = self._clients.get().get_paginator("list_objects_v2")
            pages = pager.paginate(Bucket=self._bucket, Prefix=full, Delimiter="/")
            found = [str(one["Prefix"]) for page in pages for one in page.get("CommonPrefixes", ())]
        return sorted(name[len(full) :].rstrip("/") for name in found)

    def names(self) -> Iterator[str]:
        """All names here, a page of 1000 at a time, also invalid keys; but no markers of "folders"."""
        return (name for name, _ in self._listed("") if name and not name.endswith("/"))

    def _listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and sizes. Consoles mark "folders" by empty objects named `folder/`."""
        full = self._below + check_prefix(prefix)
        with self._told("list", prefix):
            pages = (
                self._clients.get()
                .get_paginator("list_objects_v2")
                .paginate(Bucket=self._bucket, Prefix=full)
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield str(item["Key"])[len(self._below) :], int(item["Size"])

    def delete(self, keys: Iterable[str]) -> None:
        names = [self._below + check_key(key) for key in keys]
        for first in range(0, len(names), _BATCH):
            batch = names[first : first + _BATCH]
            with self._told("delete", batch[0][len(self._below) :]):
                failed = self._delete_batch(batch) if len(batch) > 1 else batch
            for name in failed:  # one by one, because botocore repeats and explains these
                with self._told("delete", name[len(self._below) :]):
                    try:
                        self._clients.get().delete_object(Bucket=self._bucket, Key=name)
                    except Exception as exc:
                        if not is_missing(exc):
                            raise

    def upload(self, key: str, path: Path) -> None:
        self._at(key)  # refuses a bad one
        try:
            with open(path, "rb") as file:
                source, size = file.fileno(), os.fstat(file.fileno()).st_size
                self._send("upload", key, lambda begin, end: os.pread(source, end - begin, begin), size)
        except OSError as exc:
            raise folder_error(exc, self.uri, "upload", key, path) from exc

    def abandon(self, prefix: str, dead: Callable[[str], bool]) -> int:
        full = self._below + check_prefix(prefix)
        client = self._clients.get()
        with self._told("look for unfinished uploads in", prefix):
            try:
                found = bulk.unfinished(client, self._bucket, full)
            except Exception as exc:
                if code_of(exc) not in _NO_BATCHES and status_of(exc) not in (405, 501):
                    raise
                found = []
        stale = [upload for upload in found if dead(str(upload["Key"])[len(self._below) :])]
        for upload in stale:
            with self._told("end the upload of", str(upload["Key"])[len(self._below) :]):
                try:
                    client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                except Exception as exc:
                    if code_of(exc) != "NoSuchUpload":
                        raise
        return len(stale)

    def download(
        self, key: str, path: Path, *, durable: bool = True, told: Callable[[int], None] = ignore_progress
    ) -> None:
        where = self._at(key)
        folder = path.absolute().parent
        try:
            make_folder(folder)
            with temp_file(folder) as (temp, file):
                with self._told("download", key):
                    bulk.fetch(self._bulk.get(), where, file, told)
                if durable:
                    sync(file)
                os.replace(temp, path)
                fsync_folder(folder)
        except OSError as exc:
            raise folder_error(exc, self.uri, "download", key, path) from exc

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._below + check_key(key)}

    def _read(self, key: str, start: int = 0, limit: int | None = None) -> bytes | None:
        """An object or a part of it; None if there is none. If the body breaks off, the request is repeated."""
        where = self._at(key)
        if limit is not None:
            where["Range"] = f"bytes={start}-{start + limit - 1}"
        with self._told("read", key):
            for round_ in range(ROUNDS):
                try:
                    answer = ask(self._clients.get(), where)
                except Exception as exc:
                    if is_missing(exc):
                        return None
                    if status_of(exc) == 416:  # the object ends before that
                        return b""
                    raise
                try:
                    data = bytes(answer["Body"].read())
                except Exception as exc:
                    if not is_client_error(exc) or round_ == ROUNDS - 1:
                        raise
                    back_off(round_)
                    continue
                sent_all = limit is not None and "ContentRange" not in answer  # the server knows no ranges
                return data[start:] if sent_all else data
        raise AssertionError("unreachable: the last round returns or raises")

    def _insist(self, send: Callable[[], object]) -> None:
        """Send a write, and repeat it as long as another writer gets in its way."""
        for round_ in range(ROUNDS):
            try:
                send()
                return
            except Exception as exc:
                if code_of(exc) not in _CONFLICT or round_ == ROUNDS - 1:
                    raise
            back_off(round_)

    def _delete_batch(self, names: builtins.list[str]) -> builtins.list[str]:
        """Delete with one request; return the names that have to be tried one by one."""
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            answer = self._clients.get().delete_objects(Bucket=self._bucket, Delete=wanted)
        except Exception as exc:
            if code_of(exc) in _NO_BATCHES or status_of(exc) in (405, 501):
                return names
            raise
        errors = answer.get("Errors", ())
        return [str(error["Key"]) for error in errors if error.get("Code") not in MISSING]

    @contextlib.contextmanager
    def _told(self, doing: str, key: str) -> Iterator[None]:
        """Turn the client's errors into a sentence; drop their cause, which may quote a signed request."""
        try:
            yield
        except Exception as exc:
            if not is_client_error(exc):
                raise
            endpoint = "its endpoint"
            with contextlib.suppress(Exception):  # there is no client if making it has failed
                endpoint = scrub(str(self._clients.get().meta.endpoint_url))
            raise store_error(exc, self.uri, self._bucket, endpoint, doing, key) from None
