"""Workers that keep each other's states: what is kept is whole, and is written where its worker is lost, not before."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters import checksums, page
from airflow_elastic.adapters.jobfiles import Members
from airflow_elastic.adapters.mailbox import Mailbox
from airflow_elastic.adapters.store import Store
from airflow_elastic.runtime import keeper, persister, sharing, slots
from airflow_elastic.runtime.keeper import Keeper
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.ring import (
    Address,
    Answer,
    Given,
    Hello,
    announce,
    find_neighbour,
    hear,
    keeper_of,
    say,
)
from airflow_elastic.runtime.saving import Position, Stateful
from airflow_elastic.runtime.slots import MEMORY, Note
from airflow_elastic.spec.errors import SpecError, StoreError
from airflow_elastic.spec.index import Index
from airflow_elastic.spec.run import RunSpec
from tests.support.buddies import Pair, pair
from tests.support.patience import PATIENCE_SECONDS, until


def objects(seed: int) -> Stateful:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),), {})


def test_what_a_lost_worker_had_in_memory_becomes_a_checkpoint(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    with pair(tmp_path / "run") as two:
        two.save(saved, 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.lose_second()
        two.workers[0].persister.flush()
        assert two.steps() == [3]
        store = two.workers[0].store
    manifest = Restorer(store, Ranks(0, 1, None), attempt=2, room=Room(tmp_path / "room", 1)).restore(loaded)
    assert manifest is not None
    assert manifest.step == 3
    ours, theirs = (torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in (saved, loaded))
    assert torch.equal(ours, theirs)


def begin_anew(two: Pair, *nodes: int) -> None:
    """The first worker begins an attempt in place with these workers, as far as all have come."""
    members = Members(2, nodes, 0.0, attempt=2)
    two.workers[0].node.persist = two.workers[0].persister.flush
    two.workers[0].node.begin(members)


def test_who_is_silent_and_has_no_place_any_more_is_lost(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        assert two.keeper(0).lost is None
        begin_anew(two, 0, 2)
        assert two.steps() == [3]


@pytest.mark.parametrize("nodes", [(0, 1), (0, 2)])
def test_who_has_a_place_or_has_said_goodbye_is_not_lost(nodes: tuple[int, ...], tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        if nodes == (0, 2):
            two.sharers[1].finish(lambda: True, done=False)
            until(lambda: two.keeper(0)._speaker is None, "the last word")
        begin_anew(two, *nodes)
        assert two.keeper(0).lost is None
        assert two.steps() == []


def test_one_that_is_lost_while_others_begin_anew_is_seen_to_until_all_have_come(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        begin_anew(two, 0, 1)
        two.lose_second()
        two.workers[0].persister.flush()  # as an agent does that is ended while it waits
        assert two.steps() == [3]


def test_a_store_that_fails_once_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        failures = iter([StoreError("for now")])
        write = persister.write_files

        def failing(store: Store, held: Any, *rest: Any) -> Any:
            if held[0][1].rank == 1 and (error := next(failures, None)):
                raise error
            return write(store, held, *rest)

        monkeypatch.setattr(persister, "write_files", failing)
        begin_anew(two, 0, 2)
        assert two.steps() == [3]


def test_when_all_have_come_nobody_is_lost_any_more(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        begin_anew(two, 0, 2)
        keep = two.keeper(0)
        assert keep.lost == 1
        keep.settle(2)
        assert keep.lost is None
        with speaking(keep, keep.place.token, 9) as late, pytest.raises(OSError, match="ended"):
            hear(late, Answer)
        assert keep.lost is None


def test_one_that_falls_silent_in_the_middle_of_a_state_holds_up_nobody(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as silent:
        say(silent, Given((note,), (checksums.of(bytes(data)),)))
        assert hear(silent, Answer).trouble is None
        silent.sendall(data[: len(data) // 2])
        keep.without((0, 2))
        keep.settle(2)
        later = replace(note, generation=2)
        with socket.create_connection((keep.place.addr, keep.place.port), timeout=PATIENCE_SECONDS) as new:
            say(new, Hello(keep.place.token, 2, 2, 1))
            say(new, Given((later,), (checksums.of(bytes(data)),)))
            assert hear(new, Answer).trouble is None
            new.sendall(data)
            assert hear(new, Answer).trouble is None
            assert keep.lost is None
    assert slots.common(keep.slots)[-1] == (2, 3)


def test_of_one_that_has_said_goodbye_nothing_is_written(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.sharers[1].finish(lambda: True, done=False)
        until(lambda: two.keeper(0)._speaker is None, "the last word")
        assert two.keeper(0).lost is None
        two.workers[0].persister.flush()
        assert two.steps() == []


def test_what_has_not_come_to_the_neighbours_is_not_overwritten(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")  # whose sharers do nothing
    saver, at = two.workers[0].saver, Position(0, 3, 3)
    assert saver.save(objects(1), 3, at, reason=MEMORY, metrics={})
    assert not saver.save(objects(1), 4, at, reason=MEMORY, metrics={})
    assert saver.save(objects(1), 5, at, reason="script", metrics={}), "what is asked for does not wait"


def test_one_that_comes_back_is_not_lost(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.cut_second()
        until(lambda: two.keeper(0)._hello.number == 2, "it to connect anew")
        assert two.keeper(0).lost is None
        two.save(objects(1), 4)
        until(lambda: two.kept(0)[-1] == 4, "its newest state to be kept")


def test_one_whose_connection_has_broken_is_not_believed_to_be_lost_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that are to end would else be killed without having saved."""
    with pair(tmp_path / "run") as two:
        node, words = two.workers[0].node, two.workers[0].words
        node.persist = two.workers[0].persister.flush
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        monkeypatch.setattr(keeper, "_SURE_SECONDS", 1e9)
        two.lose_second()
        assert not node.parked()
        assert words[page.PARK] == 1.0
        monkeypatch.setattr(keeper, "_SURE_SECONDS", -1.0)
        assert node.parked()
        assert two.steps() == [3], "others may go on without it, in the same attempt"


def test_a_neighbour_gets_time_to_have_memory_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_SEND_SECONDS", 0.05)
    monkeypatch.setattr(sharing, "_BYTES_A_SECOND", 100.0)
    room = slots.Slot.room

    def slow(slot: slots.Slot, size: int) -> memoryview:
        threading.Event().wait(0.3)
        return room(slot, size)

    with pair(tmp_path / "run") as two:
        two.workers[1].saver.save(objects(1), 3, Position(0, 3, 3), reason=MEMORY, metrics={})
        monkeypatch.setattr(slots.Slot, "room", slow)
        two.sharers[1].news()
        until(lambda: two.kept(0) == [3], "the state to be kept")
        assert two.keeper(0)._hello.number == 1


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """Is set when a neighbour has begun to make memory, which from a call on takes as long as the test does."""
    room, begun, over = slots.Slot.room, threading.Event(), threading.Event()

    def slow(slot: slots.Slot, size: int) -> memoryview:
        begun.set()
        over.wait(PATIENCE_SECONDS)
        return room(slot, size)

    yield begun, lambda: monkeypatch.setattr(slots.Slot, "room", slow)
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
        worker.words[page.WAITING] = page.ENDING
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

    def give(sharer: sharing.Sharer, *_: object) -> None:
        raise trouble

    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        monkeypatch.setattr(sharing.Sharer, "_give", give)
        two.save(objects(1), 4)
        mailbox = Mailbox(two.workers[0].store)
        until(lambda: len(mailbox.read()) == 2, "both to tell")
        until(lambda: two.keeper(0)._hello.number == number, "it to connect anew")
        assert two.keeper(0).lost is None
    (reason, _) = [one.checkpoint.reason for one in mailbox.read() if one.checkpoint]
    assert reason == "its neighbour could not be given it: nothing"


def test_a_state_that_broke_off_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3] and two.kept(1) == [3], "the states to be kept")
        monkeypatch.setattr(sharing, "_CHUNK_BYTES", 1000)
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


@contextmanager
def speaking(to: Keeper, token: str, number: int = 1) -> Iterator[socket.socket]:
    with socket.create_connection((to.place.addr, to.place.port), timeout=PATIENCE_SECONDS) as connection:
        say(connection, Hello(token, 1, 1, number))
        yield connection


def test_whoever_does_not_know_the_word_is_not_listened_to(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two, speaking(two.keeper(0), "guess") as connection:
        with pytest.raises(OSError, match="ended"):
            hear(connection, Answer)
        assert two.keeper(0).generation == 0


def test_what_has_changed_on_its_way_is_not_kept(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as connection:
        say(connection, Given((note,), (checksums.of(bytes(data)),)))
        assert hear(connection, Answer).trouble is None
        data[7] ^= 1
        connection.sendall(data)
        assert "changed" in str(hear(connection, Answer).trouble)
    assert two.kept(0) == []


@contextmanager
def staged(two: Pair, step: int) -> Iterator[tuple[Note, bytearray]]:
    """What the second worker's rank has in memory after a step."""
    worker = two.workers[1]
    worker.words[page.GIVEN] = step  # whatever was before
    assert worker.saver.save(objects(step), step, Position(0, step, step), reason=MEMORY, metrics={})
    ((slot, note),) = slots.held(worker.node.slots.of, (1, step))
    yield note, bytearray(slot.data(note.kept_bytes))
    slot.release()


def test_what_is_still_on_its_way_when_its_sender_begins_anew_is_mixed_into_nothing(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token, 1) as late:
        say(late, Given((note,), (checksums.of(bytes(data)),)))
        assert hear(late, Answer).trouble is None
        late.sendall(data[: len(data) // 2])
        with staged(two, 4) as (newer, newer_data), speaking(keep, keep.place.token, 2) as connection:
            say(connection, Given((newer,), (checksums.of(bytes(newer_data)),)))
            assert hear(connection, Answer).trouble is None
            with contextlib.suppress(OSError):  # cut off
                late.sendall(data[len(data) // 2 :])
            connection.sendall(newer_data)
            assert hear(connection, Answer).trouble is None
            assert two.kept(0) == [4]
            ((slot, _),) = slots.held(keep.slots, (1, 4))
            assert slot.data(newer.kept_bytes) == newer_data
            slot.release()
            with speaking(keep, keep.place.token, 1) as queued, pytest.raises(OSError, match="ended"):
                hear(queued, Answer)
            assert keep.lost is None


def test_memory_that_is_not_there_after_all_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)

    def room(slot: slots.Slot, size: int) -> memoryview:
        raise OSError(errno.ENOMEM, "only 0 GB are free")

    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as connection:
        monkeypatch.setattr(slots.Slot, "room", room)
        say(connection, Given((note,), (checksums.of(bytes(data)),)))
        assert "only 0 GB" in str(hear(connection, Answer).trouble)
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
    monkeypatch.setattr(keeper, "free_bytes", lambda: next(less_and_less))
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


@given(units=st.integers(2, 6), unit=st.integers(1, 4))
def test_each_keeps_one_and_none_of_its_own_unit(units: int, unit: int) -> None:
    nodes = tuple(range(10, 10 + units * unit))
    members = Members(1, nodes, 0.0)
    machines = [str(at // unit) for at in range(len(nodes))]
    keepers = [keeper_of(worker, members, unit, machines) for worker in nodes]
    assert sorted(one for one in keepers if one is not None) == list(nodes)
    assert all(
        (worker - 10) // unit != (one - 10) // unit for worker, one in zip(nodes, keepers, strict=True) if one
    )


def test_one_unit_has_nobody_to_keep_it() -> None:
    assert keeper_of(0, Members(1, (0, 1), 0.0), 2, ["a", "b"]) is None


@pytest.mark.parametrize(
    ("nodes", "unit", "why"),
    [
        ((0,), 1, "only 1 worker trains, and workers.node_unit is 1"),
        ((0, 1), 2, "only 2 workers train, and workers.node_unit is 2"),
    ],
)
def test_that_nobody_keeps_anything_is_said_when_they_meet(
    nodes: tuple[int, ...], unit: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for worker in nodes:
        announce(store, worker, Address("127.0.0.1", 1, "word"), "a machine")
    assert find_neighbour(store, 0, Members(1, nodes, 0.0), unit) is None
    (said,) = caplog.messages
    assert why in said
    assert f"have workers.min {2 * unit} or more" in said


def test_that_nobody_keeps_anything_is_told_once_in_each_generation(tmp_path: Path) -> None:
    """By the first of them: one word for all."""
    with pair(tmp_path / "run") as two:
        mailbox = Mailbox(two.workers[0].store)

        def train(generation: int, steps: Iterable[int]) -> None:
            for worker in two.workers:
                worker.node.neighbour = None
                worker.node.members = Members(generation, (0, 1), 0.0)
            for step in steps:
                for worker, sharer in zip(two.workers, two.sharers, strict=True):
                    for reason in ("steps", MEMORY):  # what is written to storage is no less safe
                        nothing = Index((), ())
                        note = Note(step, generation, 0, 2, 0, 0, 0, reason, 0, nothing, nothing)
                        sharer._take([(worker.node.slots.of[0][0], note)])

        train(1, (3, 4))
        (first,) = mailbox.read()
        train(2, (5, 6))
        told = mailbox.read()
    assert told[0] == first
    assert [(one.by, one.checkpoint.step) for one in told if one.checkpoint] == [("node-0", 3), ("node-0", 5)]
    assert first.checkpoint is not None
    assert "nobody keeps the state of another worker" in first.checkpoint.reason
    assert "only 2 workers train" in first.checkpoint.reason


@pytest.mark.parametrize(
    ("machines", "unit", "keepers"),
    [
        ("aabb", 1, [2, 3, 0, 1]),  # two on each: the one beside it is no help
        ("abab", 1, [1, 2, 3, 0]),
        ("abab", 2, [2, 3, 0, 1]),  # units come first; that both are on one machine is told
        ("aaaa", 1, [1, 2, 3, 0]),  # of one machine alone there is nothing to choose
        ("aaab", 1, [1, 2, 3, 0]),
    ],
)
def test_the_keeper_is_on_another_machine_where_that_can_be(
    machines: str, unit: int, keepers: list[int]
) -> None:
    members = Members(1, (0, 1, 2, 3), 0.0)
    assert [keeper_of(worker, members, unit, machines) for worker in members.nodes] == keepers


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.buddies"):
        RunSpec.from_dict({"command": ["train.py"], "checkpoint": {"buddies": True}})
