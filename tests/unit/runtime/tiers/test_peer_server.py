"""What agents have in memory is read from there by others' ranks, and is never taken for what was not committed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.peers import peer_client
from airflow_elastic.runtime.tiers.peers.connection import Answer, receive_document, send_document
from airflow_elastic.runtime.tiers.peers.peer_client import (
    ENVIRONMENT,
    PeerFile,
    RangeRequest,
    find_peer_files,
    open_peer_range,
)
from airflow_elastic.runtime.tiers.shared_memory import HEADER_BYTES, StagingSlot
from airflow_elastic.runtime.tiers.tiered_files import LocalFiles, TieredFiles
from tests.support.machine.machines import Far
from tests.support.machine.patience import until
from tests.support.machine.threads import together
from tests.support.training.buddies import Pair, borrowed_by_a_third, pair
from tests.support.training.saving import objects, same

STEP = 3


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Pair]:
    """Two workers, of which the second was lost after a step that both had in memory, and which is written."""
    with pair(tmp_path / "run") as both:
        both.save(objects(7), STEP)
        until(lambda: both.kept(0) == [STEP], "the state to be kept")
        both.lose_second()
        both.workers[0].persister.flush()
        assert both.steps() == [STEP]
        yield both


@pytest.fixture
def loans(two: Pair, monkeypatch: pytest.MonkeyPatch) -> dict[str, PeerFile]:
    """What the ranks of a third worker, in the second one's place, find."""
    return borrowed_by_a_third(two, monkeypatch)


def named(two: Pair) -> dict[str, int]:
    """The files that the checkpoint has, with their sizes. What is kept may be lent under another name, too: the lost
    worker may have written it.
    """
    manifest = checkpoints.read(two.workers[0].store, STEP)
    return {file.key: file.size for file in manifest.files if file.key.endswith(".bin")}


def slots(two: Pair) -> list[StagingSlot]:
    """What the first worker has in memory of the step: its own part, and the one that it keeps."""
    both = (two.workers[0].node.slots.of[0], two.keeper(0).slots[0])
    return [slot for each in both for slot in each if slot.age == (1, STEP)]


def test_what_was_lost_is_read_from_the_neighbours_memory(
    two: Pair, loans: dict[str, PeerFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert {key: loans[key].size for key in named(two)} == named(two)
    far, loaded = Far(str(two.run)), objects(1)
    room = WorkerCache(tmp_path / "room", 1, loans=loans)
    assert Restorer(far, Collectives(0, 1, None), attempt=2, room=room).restore(loaded) is not None
    assert same(loaded, objects(7))
    assert far.asked == []
    assert " 0 B from storage" in caplog.text
    assert " 0 B from others' memory" not in caplog.text


def flip(two: Pair, loans: dict[str, PeerFile]) -> None:
    for slot in slots(two):
        at = HEADER_BYTES + 8
        (byte,) = os.pread(slot.fileno(), 1, at)
        os.pwrite(slot.fileno(), bytes([byte ^ 1]), at)


def copy_over(two: Pair, loans: dict[str, PeerFile]) -> None:
    for slot in slots(two):
        slot.room(8)


def hold(two: Pair, loans: dict[str, PeerFile]) -> None:
    for slot in slots(two):
        until(slot.hold, "whoever reads it to be done")


def go(two: Pair, loans: dict[str, PeerFile]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = nobody.getsockname()[1]
    loans |= {key: replace(loan, place=replace(loan.place, port=gone)) for key, loan in loans.items()}


@pytest.mark.parametrize("harm", [flip, copy_over, hold, go])
@pytest.mark.parametrize("procs", [1, 2])
def test_what_cannot_be_had_there_is_read_from_storage(
    harm: Callable[[Pair, dict[str, PeerFile]], None],
    procs: int,
    two: Pair,
    loans: dict[str, PeerFile],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harm(two, loans)
    caplog.set_level("INFO")
    loaded = [objects(1) for _ in range(procs)]  # not in threads: they share the generator

    def restore(ranks: Collectives) -> bool:
        room = WorkerCache(tmp_path / "room", procs, loans=loans)
        restorer = Restorer(Far(str(two.run)), ranks, attempt=2, room=room)
        return restorer.restore(loaded[ranks.rank]) is not None

    assert together(procs, restore) == [True] * procs
    assert all(same(one, objects(7)) for one in loaded)
    # What is refused is read from storage at once; what is wrong, when all have found that out.
    refused = "cannot be read from another worker's memory, so it comes from storage" in caplog.text
    assert ("reading again, from storage alone" in caplog.text, refused) == (harm is flip, harm is not flip)


def test_where_a_file_lies_is_told(loans: dict[str, PeerFile], tmp_path: Path) -> None:
    """What comes from another machine is asked for otherwise than what is read from a disk."""
    lent, loan = next(iter(loans.items()))
    store, nearby = FolderStore(tmp_path / "run"), LocalFiles({"fetched": tmp_path / "fetched"}, {lent: loan})
    files = TieredFiles(store, nearby)
    assert files.local_path("fetched") == tmp_path / "fetched"
    assert files.local_path(lent) is None
    assert files.local_path("other") == tmp_path / "run" / "other"
    nearby.silent.add(loan.place)
    assert files.local_path(lent) == store.local_path(lent)


def test_ranks_of_a_worker_fetch_what_is_lent_for_each_other(
    two: Pair, loans: dict[str, PeerFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, told = list[str](), set[tuple[int, int]]()

    def save(loan: PeerFile, key: str, path: Path, tell: Callable[[int], None]) -> None:
        saved.append(key)
        borrowing_save(loan, key, path, tell)

    borrowing_save = peer_client.save
    monkeypatch.setattr(peer_client, "save", save)
    loaded = [objects(1), objects(1)]

    def restore(ranks: Collectives) -> bool:
        room = WorkerCache(tmp_path / "room", 2, loans=loans)
        restorer = Restorer(
            Far(str(two.run)), ranks, attempt=2, room=room, told=lambda *so_far: told.add(so_far)
        )
        return restorer.restore(loaded[ranks.rank]) is not None

    assert together(2, restore) == [True, True]
    assert all(same(one, objects(7)) for one in loaded)
    first, second = sorted(named(two))
    assert saved == [first], "once; of the other one, both need less than half"
    assert second not in saved
    assert any(done == loans[first].size < whole for done, whole in told), (
        "it is told before anything is read"
    )
    assert not (tmp_path / "room").exists()


def test_bytes_are_those_that_were_asked_for(two: Pair, loans: dict[str, PeerFile]) -> None:
    for key in named(two):
        loan, whole = loans[key], two.workers[0].store.get(key)
        assert whole is not None
        for start, size in ((0, loan.size), (5, 7), (loan.size, 0)):
            with open_peer_range(loan, key, start, size) as reader:
                read = bytearray(size + 1)
                count, view = 0, memoryview(read)
                while got := reader.readinto(view[count:]):
                    count += got
            assert read[:count] == whole[start : start + size]


@pytest.mark.parametrize(
    ("key", "start", "size"), [("other", 0, 1), (None, 0, 10**9), (None, -1, 1), (None, 1, -1)]
)
def test_what_is_not_there_is_refused(
    key: str | None, start: int, size: int, two: Pair, loans: dict[str, PeerFile]
) -> None:
    known, loan = next(iter(loans.items()))
    with pytest.raises(OSError, match="is not here"), open_peer_range(loan, key or known, start, size):
        pass


def test_whoever_does_not_know_the_word_is_lent_nothing(two: Pair, loans: dict[str, PeerFile]) -> None:
    key, loan = next(iter(loans.items()))
    guess = replace(loan, place=replace(loan.place, token="guess"))
    with pytest.raises(OSError, match="ended"), open_peer_range(guess, key, 0, 1):
        pass
    with socket.create_connection((loan.place.addr, loan.place.port)) as connection:
        send_document(connection, Answer("no want"))
        with pytest.raises(OSError, match="ended"):
            receive_document(connection, RangeRequest)


def test_where_no_agent_tells_nothing_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert find_peer_files() == {}
