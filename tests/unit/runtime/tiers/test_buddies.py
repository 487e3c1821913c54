"""Workers that keep each other's states: what is kept is whole, whatever happens to it on its way."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.peers import buddy_memory, buddy_sender
from airflow_elastic.runtime.tiers.peers.connection import (
    Answer,
    StateHeader,
    receive_document,
    send_document,
)
from airflow_elastic.runtime.tiers.shared_memory import MEMORY
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.buddies import Pair, objects, pair, speaking, staged


def test_what_has_not_come_to_the_neighbours_is_not_overwritten(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")  # whose sharers do nothing
    saver, at = two.workers[0].saver, Position(0, 3, 3)
    assert saver.save(objects(1), 3, at, reason=MEMORY, metrics={})
    assert not saver.save(objects(1), 4, at, reason=MEMORY, metrics={})
    assert saver.save(objects(1), 5, at, reason="script", metrics={}), "what is asked for does not wait"


def test_a_neighbour_gets_time_to_have_memory_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buddy_sender, "_SEND_SECONDS", 0.05)
    monkeypatch.setattr(buddy_sender, "_BYTES_A_SECOND", 100.0)
    room = shared_memory.StagingSlot.room

    def slow(slot: shared_memory.StagingSlot, size: int) -> memoryview:
        threading.Event().wait(0.3)
        return room(slot, size)

    with pair(tmp_path / "run") as two:
        two.workers[1].saver.save(objects(1), 3, Position(0, 3, 3), reason=MEMORY, metrics={})
        monkeypatch.setattr(shared_memory.StagingSlot, "room", slow)
        two.sharers[1].news()
        until(lambda: two.kept(0) == [3], "the state to be kept")
        assert two.keeper(0)._hello.number == 1


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """Is set when a neighbour has begun to make memory, which from a call on takes as long as the test does."""
    room, begun, over = shared_memory.StagingSlot.room, threading.Event(), threading.Event()

    def slow(slot: shared_memory.StagingSlot, size: int) -> memoryview:
        begun.set()
        over.wait(PATIENCE_SECONDS)
        return room(slot, size)

    yield begun, lambda: monkeypatch.setattr(shared_memory.StagingSlot, "room", slow)
    over.set()


Making = tuple[threading.Event, Callable[[], None]]


def test_ranks_that_end_do_not_wait_for_a_neighbour_that_makes_memory(tmp_path: Path, making: Making) -> None:
    """The place that is being read is the only one to save into, where the other is still to be written."""
    begun, start = making
    with pair(tmp_path / "run") as two:
        worker = two.workers[1]
        worker.saver.save(objects(1), 3, Position(0, 3, 3), reason=MEMORY, metrics={})
        start()
        two.sharers[1].news()
        assert begun.wait(PATIENCE_SECONDS)
        worker.words[shared_page.WAITING] = shared_page.ENDING
        until(lambda: two.keeper(0)._hello.number == 2, "it to let go")
        assert two.keeper(0).lost is None
        assert not Mailbox(worker.store).read(), "there is nothing to tell"


def test_a_worker_that_ends_while_its_neighbour_makes_memory_says_goodbye(
    tmp_path: Path, making: Making
) -> None:
    begun, start = making
    with pair(tmp_path / "run") as two:
        two.workers[1].saver.save(objects(1), 3, Position(0, 3, 3), reason=MEMORY, metrics={})
        start()
        two.sharers[1].news()
        assert begun.wait(PATIENCE_SECONDS)
        two.sharers[1].finish(lambda: True, done=False)
        until(lambda: two.keeper(0)._parted, "the last word")
        assert two.keeper(0).lost is None


def test_a_connection_may_break_again_and_again(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        for number in (2, 3):
            two.cut_second()
            until(lambda number=number: two.keeper(0)._hello.number == number, "it to connect anew")
        assert two.keeper(0).lost is None


def test_whoever_cannot_connect_anew_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        tried = threading.Event()

        def refused(*_: object) -> socket.socket:
            tried.set()
            raise ConnectionRefusedError

        with monkeypatch.context() as patched:
            patched.setattr(two.sharers[1], "_connect", refused)
            two.cut_second()
            assert tried.wait(PATIENCE_SECONDS)
        until(lambda: two.keeper(0)._hello.number == 2, "it to connect anew")
        assert two.keeper(0).lost is None


def test_whoever_cannot_connect_anew_in_the_middle_of_a_state_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        sharer, give, failed = two.sharers[1], two.sharers[1]._give, threading.Event()

        def cut(*_: object) -> None:
            monkeypatch.setattr(sharer, "_give", give)
            two.cut_second()
            raise ConnectionResetError

        connect = sharer._connect

        def refused(*_: object) -> socket.socket:
            monkeypatch.setattr(sharer, "_connect", connect)
            failed.set()
            raise ConnectionRefusedError

        monkeypatch.setattr(sharer, "_connect", refused)
        monkeypatch.setattr(sharer, "_give", cut)
        two.save(objects(1), 4)
        assert failed.wait(PATIENCE_SECONDS)
        until(lambda: two.keeper(0)._hello.number == 2, "it to connect anew")
        assert two.keeper(0).lost is None


@pytest.mark.parametrize(
    ("trouble", "number"), [(TimeoutError("nothing"), 2), (ConnectionResetError("nothing"), 3)]
)
def test_a_state_that_cannot_be_given_is_told_and_its_worker_is_not_lost(
    trouble: Exception, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says nothing is not asked twice."""

    def give(sharer: buddy_sender.BuddySender, *_: object) -> None:
        raise trouble

    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        monkeypatch.setattr(buddy_sender.BuddySender, "_give", give)
        two.save(objects(1), 4)
        mailbox = Mailbox(two.workers[0].store)
        until(lambda: len(mailbox.read()) == 2, "both to tell")
        until(lambda: two.keeper(0)._hello.number == number, "it to connect anew")
        assert two.keeper(0).lost is None
    (reason, _) = [one.checkpoint.reason for one in mailbox.read() if one.checkpoint]
    assert reason == "it could not be sent to the neighbour: nothing"


def test_a_state_that_broke_off_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3] and two.kept(1) == [3], "the states to be kept")
        monkeypatch.setattr(buddy_sender, "_CHUNK_BYTES", 1000)
        sent = threading.Event()
        connection = two.sharers[1]._connection
        assert connection is not None

        def torn(data: bytes | memoryview) -> None:
            if len(data) == 1000:  # of a state, and not of a document
                sent.set()
                connection.shutdown(socket.SHUT_RDWR)
            socket.socket.sendall(connection, data)

        def gone(*_: object) -> socket.socket:
            raise ConnectionRefusedError

        monkeypatch.setattr(two.sharers[1], "_connection", _Torn(connection, torn))
        monkeypatch.setattr(two.sharers[1], "_connect", gone)
        two.save(objects(1), 4)
        until(lambda: two.keeper(0).lost == 1, "the loss to be noticed")
        assert sent.is_set()
        assert two.kept(0) == [3]
        two.workers[0].persister.flush()
        assert two.steps() == [3]


class _Torn:
    """A connection that breaks when something in particular is sent."""

    def __init__(self, connection: socket.socket, sendall: Callable[[bytes | memoryview], None]) -> None:
        self._connection, self.sendall = connection, sendall

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


def test_whoever_does_not_know_the_word_is_not_listened_to(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two, speaking(two.keeper(0), "guess") as connection:
        with pytest.raises(OSError, match="ended"):
            receive_document(connection, Answer)
        assert two.keeper(0).generation == 0


def test_what_has_changed_on_its_way_is_not_kept(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as connection:
        send_document(connection, StateHeader((note,), (checksums.of(bytes(data)),)))
        assert receive_document(connection, Answer).trouble is None
        data[7] ^= 1
        connection.sendall(data)
        assert "changed" in str(receive_document(connection, Answer).trouble)
    assert two.kept(0) == []


def test_what_is_still_on_its_way_when_its_sender_begins_anew_is_mixed_into_nothing(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token, 1) as late:
        send_document(late, StateHeader((note,), (checksums.of(bytes(data)),)))
        assert receive_document(late, Answer).trouble is None
        late.sendall(data[: len(data) // 2])
        with staged(two, 4) as (newer, newer_data), speaking(keep, keep.place.token, 2) as connection:
            send_document(connection, StateHeader((newer,), (checksums.of(bytes(newer_data)),)))
            assert receive_document(connection, Answer).trouble is None
            with contextlib.suppress(OSError):  # cut off
                late.sendall(data[len(data) // 2 :])
            connection.sendall(newer_data)
            assert receive_document(connection, Answer).trouble is None
            assert two.kept(0) == [4]
            ((slot, _),) = shared_memory.held(keep.slots, (1, 4))
            assert slot.data(newer.kept_bytes) == newer_data
            slot.release()
            with speaking(keep, keep.place.token, 1) as queued, pytest.raises(OSError, match="ended"):
                receive_document(queued, Answer)
            assert keep.lost is None


def test_memory_that_is_not_there_after_all_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)

    def room(slot: shared_memory.StagingSlot, size: int) -> memoryview:
        raise OSError(errno.ENOMEM, "only 0 GB are free")

    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as connection:
        monkeypatch.setattr(shared_memory.StagingSlot, "room", room)
        send_document(connection, StateHeader((note,), (checksums.of(bytes(data)),)))
        assert "only 0 GB" in str(receive_document(connection, Answer).trouble)
        assert keep.lost is None


def test_a_step_that_is_saved_once_more_is_given_once_more(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.workers[1].saver.save(objects(2), 3, Position(0, 3, 3), reason="script", metrics={})
        two.sharers[1].news()

        def reasons() -> list[str]:
            return [note.reason for slot in two.keeper(0).slots[0] if slot.age and (note := slot.note())]

        until(lambda: reasons() == ["script"], "the later one in its place")
        two.lose_second()
        two.workers[0].persister.flush()  # whose own part is of the one before
        assert two.steps() == []


def test_too_little_memory_is_said_before_any_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less_and_less = itertools.count(1000, -1)
    monkeypatch.setattr(buddy_memory, "free_bytes", lambda: next(less_and_less))
    with pair(tmp_path / "run") as two:
        mailbox = Mailbox(two.workers[0].store)
        two.save(objects(1), 3)
        until(lambda: len(mailbox.read()) == 2, "both to tell")
        two.save(objects(1), 4)
        until(
            lambda: all(sharer._tried[:2] == (1, 4) for sharer in two.sharers), "the next one to be refused"
        )
        requests = mailbox.read()
    assert two.kept(0) == two.kept(1) == []
    assert len(requests) == 2, "once is enough"
    reason = requests[0].checkpoint.reason if requests[0].checkpoint else ""
    assert "2 times" in reason
    assert "turn checkpoint.buddies off" in reason
