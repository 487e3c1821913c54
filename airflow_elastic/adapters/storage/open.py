"""From a run URI to its store, and whether that store can carry a run."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.keys import key_problem, scrub
from airflow_elastic.adapters.storage.s3.errors import FIT
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec.errors import InvalidInput, StoreError, StoreUnfit

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.s3.client import ClientFactory
    from airflow_elastic.adapters.storage.store import Store

_ALLOWED = "allowed are a path such as /mnt/runs/mnist, file:///mnt/runs/mnist, and s3://bucket/prefix"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")  # with the old and the lenient rules
_PROBE = ".elastic-probe-"


def open_store(uri: str, *, s3_client_factory: ClientFactory | None = None) -> Store:
    """The store at a run URI: a path (`~` is expanded, relative ones are made absolute), `file://` or `s3://`.

    Touches neither disk nor network. `s3_client_factory` is only for s3://. It is a boto3 `Session`, or a callable that
    gets a botocore `Config` and returns an S3 client. By default boto3's usual chain applies.

    Raises:
        InvalidInput: the URI is none of these.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return FolderStore(_path(uri, uri))
    kind, rest = scheme[1].lower(), uri[scheme.end() - 1 :]
    if kind == "file":
        host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest[1:])
        if host not in {"", "localhost"} or not slash:
            raise _invalid(uri, f"{host!r} would be a host, so a path needs three slashes: file:///{host}...")
        return FolderStore(_path(f"/{unquote(path)}", uri))
    if kind == "s3" and rest.startswith("//"):
        bucket, _, prefix = rest[2:].partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise _invalid(uri, "there is no valid bucket name after s3://")
        prefix = prefix.rstrip("/")
        if prefix and (problem := key_problem(prefix)):
            raise _invalid(uri, f"its prefix cannot be used: {problem}")
        return S3Store(bucket, prefix, client_factory=s3_client_factory)
    if kind.startswith("s3"):
        raise _invalid(uri, "it has to start with s3://")
    raise _invalid(uri, f"there is no store for {kind}://")


def probe(store: Store) -> None:
    """Check once that `store` can be written to and honours exclusive creation; leaves nothing behind.

    In a folder it also removes files that dead writers left half-written more than an hour ago.

    Raises:
        StoreUnfit: it cannot carry a run, and waiting does not help.
        StoreError: it failed, and may work later.
    """
    key = f"{_PROBE}{secrets.token_hex(8)}"
    ours, theirs = b"first " + key.encode(), b"second " + key.encode()
    try:
        first = store.create(key, ours)
        second = store.create(key, theirs)
        stored = store.get(key)
        listed = [entry.key for entry in store.list(key)]
        store.delete([key])
    except BaseException:
        with contextlib.suppress(StoreError):  # the first error is the one to report
            store.delete([key])
        raise
    where = f"{store.uri} at {store.endpoint}" if isinstance(store, S3Store) else store.uri
    if second or stored == theirs:
        raise StoreUnfit(
            f"{where} let a second writer create an existing object. It ignores conditional writes "
            f"(If-None-Match: *), so two controllers could drive one run; {FIT}"
        )
    if not first or stored != ours or listed != [key]:
        raise StoreUnfit(
            f"{where} does not show what was just written to it: created {first}, read {stored == ours}, listed "
            f"{listed == [key]}. So a run's journal would have gaps; {FIT}"
        )
    if isinstance(store, FolderStore):
        store.sweep()


@dataclass(frozen=True, slots=True)
class Description:
    """The facts about a run URI that `doctor` shows. No field holds a credential."""

    uri: str
    kind: str  # "folder" or "s3"; "" for an invalid URI
    endpoint: str  # the S3 server's URL, or ""
    fit: bool
    detail: str  # one sentence: the checks that were made, or the problem with advice


def describe(uri: str, *, s3_client_factory: ClientFactory | None = None) -> Description:
    """Open and probe the store at `uri`. A bad URI or store does not raise, but is in the description."""
    kind, endpoint, normal = "", "", scrub(uri)
    try:
        store = open_store(uri, s3_client_factory=s3_client_factory)
        kind, normal = ("s3" if isinstance(store, S3Store) else "folder"), store.uri
        if isinstance(store, S3Store):
            endpoint = store.endpoint
        probe(store)
    except (InvalidInput, StoreError) as exc:
        return Description(normal, kind, endpoint, fit=False, detail=str(exc))
    return Description(
        normal, kind, endpoint, fit=True, detail="writes, reads, lists and creates exclusively"
    )


def _path(path: str, uri: str) -> str:
    if not path.strip():
        raise _invalid(uri, "it is empty")
    if "\0" in path:
        raise _invalid(uri, "it holds a NUL character")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise _invalid(uri, f"there is no user {path.partition('/')[0][1:]!r} on this machine")
    return os.path.abspath(expanded)


def _invalid(uri: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{scrub(uri)!r} cannot be a run URI: {scrub(problem)}; {_ALLOWED}")
