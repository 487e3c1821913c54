"""The stores against the suite that every store has to pass, and what is particular to S3."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_elastic.adapters.s3 import S3Store
from airflow_elastic.adapters.stores import describe, open_store, probe
from airflow_elastic.spec.errors import StoreError, StoreUnfit
from airflow_elastic.testing.store_conformance import StoreConformance
from tests.support import s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.store import Store

ROOT = Path(__file__).parents[2]


class TestFolder(StoreConformance):
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
    store = S3Store("bucket", "runs", client_factory=_impatient(server))
    with pytest.raises(StoreError, match=r"cannot be reached.*AWS_ENDPOINT_URL") as refusal:
        store.put("k", b"")
    assert where in str(refusal.value)
    assert "password" not in str(refusal.value)


_ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}


def _impatient(server: s3.S3Server) -> Any:
    """A client factory for failures that are to last: one attempt instead of six."""

    def make(config: Any) -> Any:
        from botocore.config import Config

        once = Config(retries={"mode": "standard", "total_max_attempts": 1})
        return server.session().client("s3", config=config.merge(once))

    return make


# -- clients -------------------------------------------------------------------------------------------------


def test_settings_come_from_the_standard_chain_and_survive_a_fork(s3_server: s3.S3Server) -> None:
    """In a process of its own: AWS_* name the server, and children use the store beside their parent."""
    script = """
        import os, sys, threading
        from airflow_elastic.adapters.stores import open_store

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
        timeout=120,
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


# -- a server that has bad days ------------------------------------------------------------------------------


def test_create_is_true_although_the_answer_was_lost(faults: s3.FaultProxy) -> None:
    store = faults.server.store()
    for do in ("lost", "late503"):
        faults.rules({"do": do, "method": "PUT", "path": "journal/", "count": 1})
        assert store.create(f"journal/{do}", b"ours") is True
        assert faults.hits() == [1]
        assert store.create(f"journal/{do}", b"theirs") is False
        assert store.get(f"journal/{do}") == b"ours"


def test_one_winner_although_answers_are_lost(faults: s3.FaultProxy) -> None:
    store = faults.server.store()
    racers, rounds = 8, 5
    # Five faults, and six attempts: even a racer that meets them all gets an answer.
    bad_day = [{"do": "lost", "method": "PUT", "count": 3}, {"do": "late503", "method": "PUT", "count": 2}]
    for round_ in range(rounds):
        faults.rules(*bad_day)
        start = threading.Barrier(racers)

        def race(racer: int, round_: int = round_, start: threading.Barrier = start) -> bool:
            start.wait()
            return store.create(f"race/{round_}", b"racer %d" % racer)

        with ThreadPoolExecutor(racers) as pool:
            won = list(pool.map(race, range(racers)))
        assert sum(won) == 1, f"round {round_}: {won}"
        assert store.get(f"race/{round_}") == b"racer %d" % won.index(True)
        assert faults.hits() == [3, 2]


def test_rejections_are_tried_again(faults: s3.FaultProxy, tmp_path: Path) -> None:
    store = faults.server.store()
    (source := tmp_path / "source").write_bytes(data := secrets.token_bytes(100_000))
    for method, call in (
        ("PUT", lambda: store.put("k", b"x")),
        ("GET", lambda: store.get("k")),
        ("GET", store.list),
        ("PUT", lambda: store.create("c", b"x")),
        ("PUT", lambda: store.upload("u", source)),
        ("GET", lambda: store.download("u", tmp_path / "target")),
        ("POST", lambda: store.delete(["k", "c"])),
    ):
        faults.rules({"do": "reject", "method": method, "count": 1})
        call()
        assert faults.hits() == [1], method
    assert (tmp_path / "target").read_bytes() == data
    assert [entry.key for entry in store.list()] == ["u"]


def test_bodies_that_break_off_are_read_again(faults: s3.FaultProxy, tmp_path: Path) -> None:
    store = faults.server.store()
    data = secrets.token_bytes(300_000)
    store.put("k", data)
    cut = {"do": "cut", "method": "GET", "bytes": 100_000, "count": 2}
    faults.rules(cut)
    assert store.get("k") == data
    faults.rules(cut)
    assert store.read_from("k", 10, 200_000) == data[10:200_010]
    faults.rules(cut)
    room = memoryview(bytearray(250_000))
    with store.stream("k", 20, len(room)) as reader:
        at = 0
        while count := reader.readinto(room[at:]):
            at += count
    assert bytes(room) == data[20:250_020]
    faults.rules(cut)
    store.download("k", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    assert faults.hits() == [2]


def test_an_upload_survives_a_bad_day(faults: s3.FaultProxy) -> None:
    store = faults.server.store()
    data = secrets.token_bytes(50 << 20)
    for do in ("reject", "lost", "late503"):
        # A part, and the request that makes an object of them: its answer is lost, and there is no upload any more.
        faults.rules(
            {"do": do, "method": "PUT", "path": "partNumber=2", "count": 2},
            {"do": do, "method": "POST", "path": "uploadId=", "count": 1},
        )
        store.write("u", memoryview(data))
        assert faults.hits() == [2, 1], do
        assert store.get("u") == data
        assert not faults.server.client().list_multipart_uploads(Bucket=faults.server.bucket).get("Uploads")


def test_failures_that_last_are_errors_and_leave_nothing(faults: s3.FaultProxy, tmp_path: Path) -> None:
    store = S3Store(
        faults.server.bucket, f"lasting {secrets.token_hex(4)}", client_factory=_impatient(faults.server)
    )
    store.put("k", b"x")
    faults.rules({"do": "reject"})
    for call in (
        lambda: store.get("k"),
        lambda: store.put("k", b""),
        lambda: store.create("c", b""),
        store.list,
    ):
        with pytest.raises(StoreError, match=r"still failed.*SlowDown.*try again later"):
            call()
    with pytest.raises(StoreError, match="download 'k'"):
        store.download("k", tmp_path / "made" / "target")
    assert list((tmp_path / "made").iterdir()) == []

    (source := tmp_path / "source").write_bytes(bytes(40 << 20))
    faults.rules({"do": "reject", "method": "PUT", "path": "partNumber=2"})
    with pytest.raises(StoreError, match="upload 'u'"):
        store.upload("u", source)
    assert [entry.key for entry in store.list()] == ["k"]
    answer = faults.server.client().list_multipart_uploads(Bucket=faults.server.bucket)
    assert not answer.get("Uploads"), "a failed upload takes back the parts it had sent"


# -- what dead writers leave ---------------------------------------------------------------------------------


def test_parts_of_an_upload_that_nobody_finishes_are_found_and_removed(s3_server: s3.S3Server) -> None:
    store, client = s3_server.store(), s3_server.client()
    below = store.uri.removeprefix(f"s3://{s3_server.bucket}/")
    for key in ("data/dead", "data/alive", "elsewhere"):
        where = {"Bucket": s3_server.bucket, "Key": f"{below}/{key}"}
        begun = client.create_multipart_upload(**where)
        client.upload_part(**where, UploadId=begun["UploadId"], PartNumber=1, Body=b"half")
    assert store.abandon("data/", lambda key: key == "data/dead") == 1
    assert store.abandon("data/", lambda key: key == "data/dead") == 0
    left = client.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=below)["Uploads"]
    assert sorted(one["Key"].removeprefix(f"{below}/") for one in left) == ["data/alive", "elsewhere"]
    assert store.abandon("", lambda _: True) == 2


def test_a_file_that_a_killed_writer_left_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("data/a/whole", b"x")
    writer = """
        import sys, time
        from pathlib import Path
        from airflow_elastic.adapters.durable import temp_file
        with temp_file(Path(sys.argv[1])):
            print("writing", flush=True)
            time.sleep(600)
    """
    folders = [tmp_path / "data" / name for name in "ab"]
    folders[1].mkdir()
    writers = []
    for folder in folders:
        command = [sys.executable, "-c", textwrap.dedent(writer), str(folder)]
        writers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        for one in writers:
            assert one.stdout is not None
            assert one.stdout.readline() == "writing\n"
        assert store.abandon("data/", lambda _: True) == 0
        writers[1].kill()
        writers[1].wait()
        assert store.abandon("data/b/", lambda key: key.startswith("data/a/")) == 0
        assert store.abandon("data/", lambda _: True) == 1
        assert not folders[1].exists()
        assert len(list(folders[0].iterdir())) == 2
    finally:
        for one in writers:
            one.kill()
            one.communicate()
