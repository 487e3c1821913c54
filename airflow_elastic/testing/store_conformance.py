"""What every store has to do, as a suite to run against your own:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # empty, and new for each test

The knobs are class attributes. A failure names the seed of its random choices; AIRFLOW_ELASTIC_SEED sets it.
For readable failures call `pytest.register_assert_rewrite("airflow_elastic.testing")` in your conftest.py.
"""
# ruff: noqa: PT017 - assertions are what a suite is made of, and this one does not need pytest

from __future__ import annotations

import contextlib
import os
import random
import secrets
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_elastic.spec.errors import ElasticError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_elastic.adapters.storage.store import Store

BAD_KEYS = ("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a/./b", "a\0b")
ODD_KEYS = (
    "plain",
    "with space/ leading and trailing ",
    "Größe/naïve/日本語/🙂.json",
    "percent%20plus+amp&hash#what?equals=semi;comma,quote'double\"tick`",
    ".metadata",
    "a..b/...c",
    "__0_0.distcp",
    "brackets[0]{1}(2)<3>|~!@$^*",
)


class StoreConformance:
    """Every sentence of the `Store` protocol. Needs a fixture `store`: a new, empty one for each test."""

    racers: ClassVar[int] = 16  # threads that compete for one create
    rounds: ClassVar[int] = 50  # how often they do
    many: ClassVar[int] = 0  # objects for the test of long listings; 0 skips it, 1001 is where S3's pages end
    large: ClassVar[int] = 20 << 20  # bytes of the large upload: above what your client sends in one piece
    torn_rounds: ClassVar[int] = 100  # puts by each writer while readers look for a mixture

    def test_uri_is_normalised(self, store: Store) -> None:
        uri = store.uri
        assert uri.startswith(("/", "s3://")) or "://" in uri
        assert not uri.startswith("file:")
        assert not uri.endswith("/") or uri == "/"

    def test_what_is_missing_is_no_failure(self, store: Store) -> None:
        assert store.get("nothing") is None
        assert store.get("nothing/below") is None
        assert store.read_from("nothing", 0) == b""
        assert store.read_from("nothing", 10, 10) == b""
        assert store.list() == []
        assert store.list("nothing/") == []
        store.delete(["nothing", "nothing/below"])
        store.delete([])

    @pytest.mark.parametrize("durable", [True, False])
    def test_put_creates_and_replaces(self, store: Store, durable: bool) -> None:
        for data in (b"first", b"", b"a longer one" * 1000, bytes(range(256)), b"short"):
            store.put("a/b", data, durable=durable)
            assert store.get("a/b") == data
            assert [(e.key, e.size) for e in store.list()] == [("a/b", len(data))]

    def test_create_is_exclusive(self, store: Store) -> None:
        assert store.create("journal/1", b"ours") is True
        assert store.create("journal/1", b"theirs") is False
        assert store.create("journal/1", b"") is False
        assert store.create("journal/1", b"ours, and more") is False
        assert store.get("journal/1") == b"ours"
        assert store.create("journal/2", b"ours") is True, "another key is another object"

    def test_create_answers_true_for_the_very_same_bytes(self, store: Store) -> None:
        for data in (b"mine", b""):
            key = f"same/{len(data)}"
            assert store.create(key, data) is True
            assert store.create(key, data) is True, "a client repeats a put whose answer was lost"
            assert store.get(key) == data

    def test_create_and_put_see_each_other(self, store: Store) -> None:
        store.put("k", b"put")
        assert store.create("k", b"created") is False
        assert store.get("k") == b"put"
        store.delete(["k"])
        assert store.create("k", b"created") is True
        store.put("k", b"put again")
        assert store.get("k") == b"put again"

    def test_exactly_one_of_many_racing_creates_wins(self, store: Store) -> None:
        tally: dict[int, int] = {}
        for round_ in range(self.rounds):
            key = f"race/{round_ % 7}/{round_:06}"
            offers = [f"{round_} {racer} {secrets.token_hex(4)}".encode() for racer in range(self.racers)]
            won = _together([_calling(store.create, key, offer) for offer in offers])
            winners = [offer for offer, answer in zip(offers, won, strict=True) if answer is True]
            tally[len(winners)] = tally.get(len(winners), 0) + 1
            assert len(winners) == 1, f"round {round_}: {len(winners)} of {self.racers} won; so far {tally}"
            assert store.get(key) == winners[0], f"round {round_}: the winner's bytes are not what is stored"
        assert tally == {1: self.rounds}

    def test_creates_race_with_deletes_of_their_neighbours(self, store: Store) -> None:
        """A delete that tidies up a folder must not pull it away from under a create."""

        def churn(worker: int) -> None:
            for step in range(self.rounds):
                key = f"shared/deep/{worker}-{step}"
                assert store.create(key, key.encode()) is True
                assert store.get(key) == key.encode()
                store.delete([key])
                assert store.get(key) is None

        _together([_calling(churn, worker) for worker in range(4)])
        assert store.list() == []

    @pytest.mark.parametrize("durable", [True, False])
    def test_readers_never_see_a_torn_put(self, store: Store, durable: bool) -> None:
        """Writers put runs of one byte, of several lengths, so that a mixture, a cut or a gap would show."""
        with _seeded() as rng:
            sizes = [1, 17, 4096, 65537, 300_000]
            store.put("torn", b"\xff")
            done = threading.Event()

            def write(mark: int) -> None:
                mine = random.Random(rng.random())
                for _ in range(self.torn_rounds):
                    store.put("torn", bytes([mark]) * mine.choice(sizes), durable=durable)

            def read() -> int:
                seen = 0
                while not done.is_set() or not seen:
                    data = store.get("torn")
                    assert data, "the object was missing or empty while it was replaced"
                    assert data == data[:1] * len(data), "the object was a mixture of two puts"
                    assert len(data) in sizes, f"the object was cut to {len(data)} bytes"
                    assert [e.key for e in store.list("torn")] == ["torn"], "it was not listed meanwhile"
                    seen += 1
                return seen

            with ThreadPoolExecutor(2) as pool:
                readers = [pool.submit(read) for _ in range(2)]
                try:
                    _together([_calling(write, mark) for mark in range(1, 4)])
                finally:
                    done.set()
                assert all(reader.result() for reader in readers)

    def test_read_from_at_its_edges(self, store: Store) -> None:
        data = bytes(range(100))
        store.put("log", data)
        assert store.read_from("log", 0) == data
        assert store.read_from("log", 0, 10) == data[:10]
        assert store.read_from("log", 99, 10) == data[99:]
        assert store.read_from("log", 95, 5) == data[95:]
        assert store.read_from("log", 100) == b""
        assert store.read_from("log", 1000, 1) == b""
        assert store.read_from("log", 0, 0) == b""
        store.put("log", data + b"more")
        assert store.read_from("log", 100) == b"more", "a reader follows what grows"
        store.put("empty", b"")
        assert store.read_from("empty", 0) == b""
        store.put("big", b"x" * ((1 << 20) + 3))
        assert len(store.read_from("big", 0)) == 1 << 20, "the default limit is 1 MiB"
        assert store.read_from("big", 1 << 20) == b"xxx"
        with _raises(ElasticError, "a negative offset"):
            store.read_from("log", -1)

    def test_a_stream_gives_the_bytes_that_were_asked_for(self, store: Store) -> None:
        with _seeded() as rng:
            store.write("big", memoryview(data := rng.randbytes(self.large + 1)))
            store.put("empty", b"")
            edges = [
                0,
                1,
                len(data) - 1,
                len(data),
                len(data) + 1,
                *(rng.randrange(len(data)) for _ in range(5)),
            ]
            for start in edges:
                for size in (0, 1, rng.randrange(len(data)), len(data)):
                    assert _streamed(store, "big", start, size, rng) == data[start : start + size], (
                        start,
                        size,
                    )
            assert _streamed(store, "empty", 0, 10, rng) == b""
            assert _streamed(store, "missing", 0, 10, rng) == b""

    def test_what_is_written_at_a_pace_is_told_part_by_part(self, store: Store) -> None:
        parts: list[int] = []

        @contextlib.contextmanager
        def pace(size: int) -> Iterator[None]:
            yield
            parts.append(size)

        with _seeded() as rng:
            store.write("big", memoryview(data := rng.randbytes(self.large + 1)), pace=pace)
            assert store.get("big") == data
        assert sum(parts) == len(data)

    def test_list_takes_string_prefixes_and_sorts_by_key(self, store: Store) -> None:
        # '-' and '.' sort before '/', so walking folders in order would not sort these
        keys = ["a/1", "a-b", "a.b", "a/10", "a/2", "ab/1", "b", "a/deep/er/1", "B", "é"]
        for size, key in enumerate(keys):
            store.put(key, b"x" * size)
        sizes = {key: size for size, key in enumerate(keys)}
        for prefix in ("", "a", "a/", "a/1", "a/d", "a/deep/", "a/deep/er/1", "a/deep/er/12", "b/", "z", "."):
            expected = sorted(key for key in keys if key.startswith(prefix))
            listed = store.list(prefix)
            assert [entry.key for entry in listed] == expected, f"prefix {prefix!r}"
            assert all(entry.size == sizes[entry.key] for entry in listed)

    def test_long_listings_are_complete(self, store: Store) -> None:
        if not self.many:
            return
        keys = [f"many/{number % 10}/{number:05}" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, key.encode()), keys))
        assert [entry.key for entry in store.list("many/")] == sorted(keys)
        store.delete(key for key in keys[1:])
        assert [entry.key for entry in store.list()] == keys[:1]

    def test_keys_may_hold_what_people_write(self, store: Store) -> None:
        for key in ODD_KEYS:
            assert store.create(key, key.encode()) is True, key
        for key in ODD_KEYS:
            assert store.get(key) == key.encode(), key
            assert store.read_from(key, 1, 3) == key.encode()[1:4], key
            assert [entry.key for entry in store.list(key)] == [key]
        assert [entry.key for entry in store.list()] == sorted(ODD_KEYS)
        store.delete(ODD_KEYS)
        assert store.list() == []

    def test_bad_keys_are_refused(self, store: Store) -> None:
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "local")
            local.write_bytes(b"x")
            calls: list[Callable[[str], object]] = [
                store.get,
                lambda key: store.read_from(key, 0),
                lambda key: _streamed(store, key, 0, 1, random.Random(0)),
                lambda key: store.put(key, b""),
                lambda key: store.create(key, b""),
                lambda key: store.delete([key]),
                lambda key: store.upload(key, local),
                lambda key: store.download(key, Path(folder, "other")),
                store.local_path,
            ]
            for key in BAD_KEYS:
                for call in calls:
                    with _raises(ElasticError, f"the key {key!r}"):
                        call(key)
        assert store.list() == []

    def test_delete_removes_only_what_it_is_told(self, store: Store) -> None:
        keys = ["d/1", "d/2", "d/10", "d/sub/1", "e"]
        for key in keys:
            store.put(key, b"x")
        store.delete(key for key in ("d/1", "d/missing", "d", "d/sub/1"))
        assert [entry.key for entry in store.list()] == ["d/10", "d/2", "e"]
        assert store.get("d/1") is None
        store.delete(["d/2", "d/10", "e"])
        assert store.list() == []
        if (path := store.local_path("d/sub/1")) is not None:
            assert not path.parent.parent.exists(), "empty folders do not remain visible"
        store.put("d", b"now an object")
        assert store.get("d") == b"now an object", "nothing remains of the folder of that name"

    def test_upload_and_download_are_whole(self, store: Store) -> None:
        with _seeded() as rng, tempfile.TemporaryDirectory(suffix=" with space") as folder:
            source, target = Path(folder, "source"), Path(folder, "made/for it/target")
            for size in (0, 1, 100_000, self.large + 1):
                source.write_bytes(data := rng.randbytes(size))
                store.upload("ckpt/shard 0.bin", source)
                assert [(e.key, e.size) for e in store.list()] == [("ckpt/shard 0.bin", size)]
                told = list[int]()
                store.download("ckpt/shard 0.bin", target, durable=bool(size % 2), told=told.append)
                assert target.read_bytes() == data, f"{size} bytes came back changed"
                assert told == sorted(told), "bytes that have come do not go away again"
                assert max(told, default=0) == size, "progress is reported up to the last byte"
                assert size <= self.large or len(told) > 1, (
                    "progress of a large object is reported several times"
                )
                assert store.read_from("ckpt/shard 0.bin", max(0, size - 5)) == data[-5:]
                assert [path.name for path in target.parent.iterdir()] == ["target"], "temporary files remain"

    def test_failed_copies_leave_nothing(self, store: Store) -> None:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "target")
            with _raises(StoreError, "a download of what is not there"):
                store.download("missing", target)
            assert list(Path(folder).iterdir()) == []
            target.write_bytes(b"old")
            with _raises(StoreError, "a download of what is not there"):
                store.download("missing", target)
            assert target.read_bytes() == b"old"
            with _raises(ElasticError, "an upload of a file that is not there"):
                store.upload("k", Path(folder, "none"))
            store.put("k", b"x")
            with _raises(ElasticError, "a download below a file"):
                store.download("k", target / "below")
            assert target.read_bytes() == b"old"
        assert [entry.key for entry in store.list()] == ["k"]

    def test_local_path_is_an_ordinary_file_or_none(self, store: Store) -> None:
        path = store.local_path("some/where")
        if path is None:
            return
        assert not path.exists()
        assert store.list() == [], "asking creates nothing"
        store.put("some/where", b"here")
        assert path.read_bytes() == b"here"

    def test_one_store_serves_many_threads(self, store: Store) -> None:
        def work(worker: int) -> None:
            for step in range(5):
                key = f"threads/{worker}/{step}"
                store.put(key, key.encode() * 100)
                assert store.get(key) == key.encode() * 100
                assert len(store.list(f"threads/{worker}/")) == step + 1

        _together([_calling(work, worker) for worker in range(self.racers)])
        assert len(store.list("threads/")) == self.racers * 5


def _streamed(store: Store, key: str, start: int, size: int, rng: random.Random) -> bytes:
    """Read with room of random sizes."""
    parts = []
    with store.stream(key, start, size) as reader:
        while count := reader.readinto(room := memoryview(bytearray(rng.randint(1, 1 << 20)))):
            parts.append(bytes(room[:count]))
    return b"".join(parts)


def _calling(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: call(*args)


def _together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Start all calls at one moment, each in its own thread; their answers in order, or the first error."""
    start = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(one, call) for call in calls]]


@contextlib.contextmanager
def _seeded() -> Iterator[random.Random]:
    seed = int(os.environ.get("AIRFLOW_ELASTIC_SEED") or secrets.randbits(32))
    try:
        yield random.Random(seed)
    except AssertionError as exc:
        exc.add_note(f"AIRFLOW_ELASTIC_SEED={seed}")
        raise


@contextlib.contextmanager
def _raises(kind: type[Exception], what: str) -> Iterator[None]:
    try:
        yield
    except kind as exc:
        assert str(exc).strip(), f"{what} was refused without a word"
    else:
        raise AssertionError(f"{what} was accepted; it should raise {kind.__name__}")
