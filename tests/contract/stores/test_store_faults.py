"""Stores whose server, or whose writer, has a bad day."""

from __future__ import annotations

import secrets
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.s3.client import ATTEMPTS
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from tests.support import s3

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store

ROOT = Path(__file__).parents[3]


# -- a server that has bad days ------------------------------------------------------------------------------


def test_create_is_true_although_the_answer_was_lost(faults: s3.FaultProxy) -> None:
    store = faults.server.store()
    for do in ("lost", "late"):
        faults.rules({"do": do, "method": "PUT", "path": "journal/", "count": 1})
        assert store.create(f"journal/{do}", b"ours") is True
        assert faults.hits() == [1]
        assert store.create(f"journal/{do}", b"theirs") is False
        assert store.get(f"journal/{do}") == b"ours"


def test_one_winner_although_answers_are_lost(faults: s3.FaultProxy) -> None:
    store = faults.server.store()
    racers, rounds = 8, 5
    # Five faults, and six attempts: even a racer that meets them all gets an answer.
    bad_day = [{"do": "lost", "method": "PUT", "count": 3}, {"do": "late", "method": "PUT", "count": 2}]
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


def test_a_long_life_of_looking_for_what_is_not_there_wears_out_no_patience(
    faults: s3.FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore's standard mode gives each client a budget of retries, which answers of 404 never fill up again."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    store = faults.server.store()
    for _ in range(120):
        faults.rules({"do": "reject", "method": "GET", "count": 1})
        assert store.get("not/there") is None
        assert faults.hits() == [1]


def test_rejections_are_tried_again(faults: s3.FaultProxy, tmp_path: Path) -> None:
    store = faults.server.store()
    (source := tmp_path / "source").write_bytes(data := secrets.token_bytes(100_000))
    calls = (
        ("PUT", lambda: store.put("k", b"x")),
        ("GET", lambda: store.get("k")),
        ("GET", store.list),
        ("PUT", lambda: store.create("c", b"x")),
        ("PUT", lambda: store.upload("u", source)),
        ("GET", lambda: store.download("u", tmp_path / "target")),
        ("POST", lambda: store.delete(["k", "c"])),
    )
    for status in (500, 503):
        for method, call in calls:
            faults.rules({"do": "reject", "status": status, "method": method, "count": 1})
            call()
            assert faults.hits() == [1], (status, method)
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
    for bad in ({"do": "reject"}, {"do": "lost"}, {"do": "late"}, {"do": "late", "status": 500}):
        # A part, and the request that makes an object of them: its answer is lost, and there is no upload any more.
        faults.rules(
            {**bad, "method": "PUT", "path": "partNumber=2", "count": 2},
            {**bad, "method": "POST", "path": "uploadId=", "count": 1},
        )
        store.write("u", memoryview(data))
        assert faults.hits() == [2, 1], bad
        assert store.get("u") == data
        assert not faults.server.client().list_multipart_uploads(Bucket=faults.server.bucket).get("Uploads")


#: Instead of the half minute that our clients wait; a busy machine needs some of it for an honest answer.
SHORT_SECONDS = 2.0


def soon_tired(faults: s3.FaultProxy) -> S3Store:
    """A store that waits no longer than it must here, and tries again as often as ever."""
    factory = s3.impatient(faults.server, attempts=ATTEMPTS, seconds=SHORT_SECONDS)
    return S3Store(faults.server.bucket, f"tired {secrets.token_hex(4)}", client_factory=factory)


@pytest.mark.parametrize("do", ["hang", "silent", "choke"])
def test_an_upload_survives_a_server_that_says_no_more_in_the_midst_of_it(
    do: str, faults: s3.FaultProxy
) -> None:
    store, data = soon_tired(faults), secrets.token_bytes(50 << 20)
    faults.rules(
        {"do": do, "method": "PUT", "path": "partNumber=2", "count": 2},
        {"do": do, "method": "POST", "path": "uploadId=", "count": 1},
    )
    store.write("u", memoryview(data))
    assert faults.hits() == [2, 1]
    assert store.get("u") == data
    assert not faults.server.client().list_multipart_uploads(Bucket=faults.server.bucket).get("Uploads")


@pytest.mark.parametrize("do", ["hang", "silent"])
def test_create_knows_whose_it_is_although_nobody_answers(do: str, faults: s3.FaultProxy) -> None:
    store = soon_tired(faults)
    faults.rules({"do": do, "method": "PUT", "count": 1})
    assert store.create("c", b"ours") is True
    assert store.create("c", b"theirs") is False
    assert faults.hits() == [1]


def test_bodies_that_stop_are_read_again(faults: s3.FaultProxy, tmp_path: Path) -> None:
    store, data = soon_tired(faults), secrets.token_bytes(20 << 20)
    store.write("k", memoryview(data))
    stall = {"do": "stall", "method": "GET", "bytes": 100_000, "count": 2}
    faults.rules(stall)
    assert store.get("k") == data
    faults.rules(stall)
    room = memoryview(bytearray(len(data)))
    with store.stream("k", 0, len(room)) as reader:
        at = 0
        while count := reader.readinto(room[at:]):
            at += count
    assert bytes(room) == data
    faults.rules(stall)
    store.download("k", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    assert faults.hits() == [2]


@pytest.mark.parametrize("do", ["cut", "stall"])
def test_an_answer_that_there_is_nothing_may_break_off_too(do: str, faults: s3.FaultProxy) -> None:
    store = soon_tired(faults)
    store.put("short", b"12345")
    answers: list[tuple[Callable[[], object], object]] = [
        (lambda: store.get("absent"), None),
        (lambda: store.read_from("short", 5), b""),
        (lambda: _streamed(store, "absent"), b""),
        (lambda: _streamed(store, "short", 5), b""),
    ]
    for ask, answer in answers:
        faults.rules({"do": do, "method": "GET", "bytes": 10, "count": 1})
        assert ask() == answer
        assert faults.hits() == [1]


def _streamed(store: Store, key: str, start: int = 0) -> bytes:
    room = bytearray(5)
    with store.stream(key, start, len(room)) as stream:
        return bytes(room[: stream.readinto(memoryview(room))])


def test_a_slow_server_is_no_broken_one(faults: s3.FaultProxy) -> None:
    store, data = faults.server.store(), secrets.token_bytes(17 << 20)
    slow = {"do": "slow", "bytes": 8 << 20}
    faults.rules({**slow, "method": "PUT"}, {**slow, "method": "GET"})
    store.write("k", memoryview(data))
    assert store.get("k") == data
    assert faults.hits() == [2, 1], "it was tried again"


def test_failures_that_last_are_errors_and_leave_nothing(faults: s3.FaultProxy, tmp_path: Path) -> None:
    # Time enough for a busy server to take parts back, which is asked for once.
    factory = s3.impatient(faults.server, seconds=3.0)
    store = S3Store(faults.server.bucket, f"lasting {secrets.token_hex(4)}", client_factory=factory)
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
    for bad in ({"do": "reject"}, {"do": "reject", "status": 500}, {"do": "hang"}, {"do": "choke"}):
        faults.rules({**bad, "method": "PUT", "path": "partNumber=2"})
        with pytest.raises(StoreError, match="upload 'u'"):
            store.upload("u", source)
        assert [entry.key for entry in store.list()] == ["k"]
        answer = faults.server.client().list_multipart_uploads(Bucket=faults.server.bucket)
        assert not answer.get("Uploads"), f"a failed upload takes back the parts it had sent: {bad}"


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


def writer(folder: Path) -> subprocess.Popen[str]:
    """One that is in the midst of a file."""
    program = """
        import sys, time
        from pathlib import Path
        from airflow_elastic.adapters.storage.durable_files import temp_file
        with temp_file(Path(sys.argv[1])):
            print("writing", flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_a_commit_that_was_cut_off_leaves_no_file(tmp_path: Path) -> None:
    (folder := tmp_path / layout.MANIFESTS).mkdir(parents=True)
    store, one = open_store(str(tmp_path)), writer(folder)
    try:
        assert checkpoint_retention.remove_uncommitted(store, before_attempt=2) == 0, "its writer lives"
    finally:
        one.kill()
        one.communicate()
    assert checkpoint_retention.remove_uncommitted(store, before_attempt=2) == 1
    assert list(tmp_path.rglob("*.*")) == []


def test_a_file_that_a_killed_writer_left_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("data/a/whole", b"x")
    folders = [tmp_path / "data" / name for name in "ab"]
    folders[1].mkdir()
    writers = []
    for folder in folders:
        writers.append(writer(folder))
    try:
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
