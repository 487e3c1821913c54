"""The stores against the suite that every store has to pass, and what is particular to S3."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_elastic.adapters.storage.open import describe, open_store, probe
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec.errors import StoreError, StoreUnfit
from airflow_elastic.testing.store_conformance import StoreConformance
from tests.support import s3
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.storage.store import Store

ROOT = Path(__file__).parents[3]


class TestFolder(StoreConformance):
    large = 70 << 20  # three pieces of those that the disk is given
    many = 1100
    rounds = 100
    racers = 32

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "runs"))


class TestFolderWithSpaces(StoreConformance):
    rounds = 10
    torn_rounds = 20

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store((tmp_path / "my runs/ö 100%").as_uri())


class TestS3(StoreConformance):
    many = 1100
    rounds = 25
    torn_rounds = 20

    @pytest.fixture
    def store(self, s3_server: s3.S3Server) -> Iterator[Store]:
        store = s3_server.store()
        yield store
        store.delete(entry.key for entry in store.list())


class TestS3WholeBucket:
    def test_a_bucket_without_a_prefix_is_a_store(self, s3_server: s3.S3Server) -> None:
        store = s3_server.store("")
        assert store.uri == f"s3://{s3_server.bucket}"
        store.put("whole bucket/k", b"x")
        assert [entry.key for entry in store.list("whole bucket/")] == ["whole bucket/k"]
        store.delete(["whole bucket/k"])


# -- is this store fit for a run -----------------------------------------------------------------------------


def test_probe_accepts_what_honours_conditional_writes(s3_server: s3.S3Server, tmp_path: Path) -> None:
    for store in (s3_server.store(), open_store(str(tmp_path / "not there yet"))):
        probe(store)
        assert store.list() == [], "the probe cleans up after itself"


def test_probe_refuses_a_server_that_ignores_conditional_writes(moto_server: s3.S3Server) -> None:
    with s3.lesser_proxy(moto_server, strip=("if-none-match",)) as forgetful:
        store = forgetful.store()
        with pytest.raises(StoreUnfit) as refusal:
            probe(store)
        said = str(refusal.value)
        for part in (
            store.uri,
            forgetful.endpoint_url,
            "If-None-Match",
            "second writer",
            "versitygw",
            "folder",
        ):
            assert part in said
        assert store.list() == [], "the probe cleans up after itself"
        report = describe(store.uri, s3_client_factory=forgetful.session())
        assert (report.fit, report.kind, report.endpoint) == (False, "s3", forgetful.endpoint_url)
        assert report.detail == said


def test_probe_refuses_a_server_that_lacks_conditional_writes(moto_server: s3.S3Server) -> None:
    def refuse(_method: str, _path: str, headers: Any) -> tuple[int, str] | None:
        return (501, "NotImplemented") if headers.get("If-None-Match") else None

    with (
        s3.lesser_proxy(moto_server, refuse=refuse) as lesser,
        pytest.raises(StoreUnfit, match="lacks an operation"),
    ):
        probe(lesser.store())


def test_a_missing_bucket_is_explained(s3_server: s3.S3Server) -> None:
    store = open_store("s3://there-is-no-such-bucket/runs", s3_client_factory=s3_server.session())
    calls = [
        lambda: store.get("k"),
        lambda: store.put("k", b""),
        lambda: store.create("k", b""),
        store.list,
        lambda: probe(store),
    ]
    for call in calls:
        with pytest.raises(StoreUnfit, match=r"no bucket 'there-is-no-such-bucket'.*aws s3 mb"):
            call()
    assert not describe(store.uri, s3_client_factory=s3_server.session()).fit


def test_refused_credentials_are_explained_and_not_shown(s3_server: s3.S3Server) -> None:
    if s3_server.kind == "moto":
        pytest.skip("moto accepts all credentials; set ELASTIC_TEST_S3_ENDPOINT to a real server to run this")
    for changed in (
        {"AWS_SECRET_ACCESS_KEY": "wrong-and-secret"},
        {"AWS_ACCESS_KEY_ID": "AKIAWRONGANDSECRET"},
    ):
        other = s3.S3Server(s3_server.endpoint_url, {**s3_server.env, **changed}, "given", s3_server.bucket)
        store = other.store()
        for call in (store.list, lambda store=store: store.get("k"), lambda store=store: probe(store)):
            with pytest.raises(StoreUnfit, match="does not accept the credentials") as refusal:
                call()
            assert not any(value in str(refusal.value) for value in changed.values())
            assert refusal.value.__cause__ is None
            assert refusal.value.__suppress_context__


def test_an_endpoint_that_is_not_there_is_explained() -> None:
    where = f"127.0.0.1:{s3.free_port()}"
    server = s3.S3Server(f"http://user:password@{where}", _ENV, "given")
    store = S3Store("bucket", "runs", client_factory=s3.impatient(server))
    with pytest.raises(StoreError, match=r"cannot be reached.*AWS_ENDPOINT_URL") as refusal:
        store.put("k", b"")
    assert where in str(refusal.value)
    assert "password" not in str(refusal.value)


_ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}


# -- clients -------------------------------------------------------------------------------------------------


def test_settings_come_from_the_standard_chain_and_survive_a_fork(s3_server: s3.S3Server) -> None:
    """In a process of its own: AWS_* name the server, and children use the store beside their parent."""
    script = """
        import os, sys, threading
        from airflow_elastic.adapters.storage.open import open_store

        store = open_store(sys.argv[1])
        store.put("parent", b"x" * 100_000)
        busy = threading.Event()

        def keep_reading():  # so that the fork happens while another thread is in the client
            while True:
                assert store.get("parent") == b"x" * 100_000
                busy.set()

        threading.Thread(target=keep_reading, daemon=True).start()
        busy.wait()
        children = []
        for number in range(4):
            if not (child := os.fork()):
                try:
                    key = f"child/{number}"
                    won = store.create(key, key.encode())
                    same = all(store.get("parent") == b"x" * 100_000 for _ in range(10))
                    os._exit(0 if won and same and store.get(key) == key.encode() else 1)
                except BaseException as exc:
                    print(repr(exc), file=sys.stderr, flush=True)
                    os._exit(2)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(codes, len(store.list("child/")), flush=True)
        os._exit(0)
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(script),
            f"s3://{s3_server.bucket}/fork {secrets.token_hex(4)}/",
        ],
        env={**plain, **s3_server.env, "PYTHONPATH": str(ROOT), "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout.strip() == "[0, 0, 0, 0] 4", done.stderr[-3000:]


def test_objects_are_deleted_one_by_one_where_batches_are_lacking(moto_server: s3.S3Server) -> None:
    def refuse(method: str, path: str, _headers: Any) -> tuple[int, str] | None:
        return (501, "NotImplemented") if method == "POST" and path.endswith("?delete") else None

    with s3.lesser_proxy(moto_server, refuse=refuse) as lesser:
        store = lesser.store()
        keys = [f"k/{number}" for number in range(5)]
        for key in keys:
            store.put(key, b"x")
        store.delete([*keys[1:], "missing"])
        assert [entry.key for entry in store.list()] == keys[:1]


def test_a_conflict_of_two_writers_is_tried_again(moto_server: s3.S3Server) -> None:
    """Amazon's server answers 409 to conditional writes that run into each other: nobody has won yet."""
    conflicts = itertools.count(1)

    def refuse(_method: str, _path: str, headers: Any) -> tuple[int, str] | None:
        if headers.get("If-None-Match") and next(conflicts) <= 2:
            return 409, "ConditionalRequestConflict"
        return None

    with s3.lesser_proxy(moto_server, refuse=refuse) as lesser:
        store = lesser.store()
        assert store.create("journal/1", b"ours") is True
        assert store.create("journal/1", b"theirs") is False
        assert next(conflicts) == 5
