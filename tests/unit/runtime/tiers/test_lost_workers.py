"""What a worker had in memory is written by the one that keeps it where that worker is lost, not before."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.peers import buddy_memory
from airflow_elastic.runtime.tiers.peers.connection import (
    Answer,
    Hello,
    StateHeader,
    receive_document,
    send_document,
)
from airflow_elastic.runtime.tiers.storage import writer
from airflow_elastic.spec.errors import StoreError
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.buddies import Pair, objects, pair, speaking, staged


def test_what_a_lost_worker_had_in_memory_becomes_a_checkpoint(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    with pair(tmp_path / "run") as two:
        two.save(saved, 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.lose_second()
        two.workers[0].persister.flush()
        assert two.steps() == [3]
        store = two.workers[0].store
    manifest = Restorer(
        store, Collectives(0, 1, None), attempt=2, room=WorkerCache(tmp_path / "room", 1)
    ).restore(loaded)
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
        write = writer.write_files

        def failing(store: Store, held: Any, *rest: Any) -> Any:
            if held[0][1].rank == 1 and (error := next(failures, None)):
                raise error
            return write(store, held, *rest)

        monkeypatch.setattr(writer, "write_files", failing)
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
            receive_document(late, Answer)
        assert keep.lost is None


def test_one_that_falls_silent_in_the_middle_of_a_state_holds_up_nobody(tmp_path: Path) -> None:
    two = Pair(tmp_path / "run")
    keep = two.keeper(0)
    with staged(two, 3) as (note, data), speaking(keep, keep.place.token) as silent:
        send_document(silent, StateHeader((note,), (checksums.of(bytes(data)),)))
        assert receive_document(silent, Answer).trouble is None
        silent.sendall(data[: len(data) // 2])
        keep.without((0, 2))
        keep.settle(2)
        later = replace(note, generation=2)
        with socket.create_connection((keep.place.addr, keep.place.port), timeout=PATIENCE_SECONDS) as new:
            send_document(new, Hello(keep.place.token, 2, 2, 1))
            send_document(new, StateHeader((later,), (checksums.of(bytes(data)),)))
            assert receive_document(new, Answer).trouble is None
            new.sendall(data)
            assert receive_document(new, Answer).trouble is None
            assert keep.lost is None
    assert shared_memory.common(keep.slots)[-1] == (2, 3)


def test_of_one_that_has_said_goodbye_nothing_is_written(tmp_path: Path) -> None:
    with pair(tmp_path / "run") as two:
        two.save(objects(1), 3)
        until(lambda: two.kept(0) == [3], "the state to be kept")
        two.sharers[1].finish(lambda: True, done=False)
        until(lambda: two.keeper(0)._speaker is None, "the last word")
        assert two.keeper(0).lost is None
        two.workers[0].persister.flush()
        assert two.steps() == []


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
        monkeypatch.setattr(buddy_memory, "_SURE_SECONDS", 1e9)
        two.lose_second()
        assert not node.parked()
        assert words[shared_page.PARK] == 1.0
        monkeypatch.setattr(buddy_memory, "_SURE_SECONDS", -1.0)
        assert node.parked()
        assert two.steps() == [3], "others may go on without it, in the same attempt"
