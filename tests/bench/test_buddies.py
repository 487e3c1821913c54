"""How soon a neighbour has what a worker's ranks have saved into memory, and a successor what the neighbour has."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints, checksums
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.peers.connection import receive_into
from airflow_elastic.runtime.tiers.shared_memory import MEMORY
from tests.bench.support.figures import count, heading, median, spread
from tests.bench.test_checkpoint import build, size_of
from tests.support.machine.patience import until
from tests.support.training.buddies import borrowed_by_a_third, pair

ROUNDS = count("ROUNDS", 5)


def raw_transfer(data: memoryview, room: memoryview) -> float:
    """The same bytes from memory to memory through a socket of this machine, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def receive() -> None:
            connection, _ = listener.accept()
            with connection:
                receive_into(connection, room)

        receiver = threading.Thread(target=receive)
        receiver.start()
        began = time.perf_counter()
        with socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(data)
            receiver.join()
        return time.perf_counter() - began


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_state_comes_to_its_keeper(tmp_path: Path) -> None:
    objects = build()
    with pair(tmp_path / "run") as two:
        worker, sharer, keep = two.workers[0], two.sharers[0], two.keeper(1)
        saver = worker.saver
        given, raw, sums = [], [], []
        share = 0
        for step in range(1, ROUNDS + 3):
            until(
                lambda s=step: saver.save(objects, s, Position(0, s, s), reason=MEMORY, metrics={}),  # type: ignore[misc]
                "the one before to be given",
            )
            began = time.perf_counter()
            sharer.news()
            until(lambda s=step: (1, s) in shared_memory.common(keep.slots), "the state to be kept")  # type: ignore[misc]
            took = time.perf_counter() - began
            ((slot, note),) = shared_memory.held(worker.node.slots.of, (1, step))
            data = slot.data(note.kept_bytes)
            share = len(data)
            floor = raw_transfer(data, memoryview(bytearray(share)))
            at = time.perf_counter()
            checksums.of(data)
            summed = time.perf_counter() - at
            slot.release()
            if step > 2:  # both places have their memory
                given.append(took)
                raw.append(floor)
                sums.append(summed)
    size = size_of(objects)
    heading(
        f"{size / 1e9:.3f} GB, of which a worker of two gives {share / 1e9:.3f} GB to its neighbour, {ROUNDS} rounds"
    )
    print(f"  given, checked and kept: {spread(given)}")
    print(f"  the same bytes through a socket, unchecked: {spread(raw)}")
    print(f"  one checksum of them: {spread(sums)}")
    print(f"  ratio to the socket alone: {median(given) / median(raw):.2f}x")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_successor_has_the_state_from_others_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, loaded = build(), build()
    with pair(tmp_path / "run") as two:
        two.save(saved, 1)
        until(lambda: two.kept(0) == [1], "the state to be kept")
        two.lose_second()
        two.workers[0].persister.flush()
        store = two.workers[0].store
        manifest = checkpoints.read(store, 1)
        loans = borrowed_by_a_third(two, monkeypatch)
        sizes = [file.size for file in manifest.files if file.key in loans]
        lent, stored, raw = [], [], []
        data, room = memoryview(bytearray(sum(sizes))), memoryview(bytearray(sum(sizes)))
        for _ in range(ROUNDS + 1):
            for times, known in ((lent, loans), (stored, {})):
                alone = WorkerCache(tmp_path / "room", 1, loans=known)
                began = time.perf_counter()
                Restorer(store, Collectives(0, 1, None), attempt=2, room=alone).restore(loaded)
                times.append(time.perf_counter() - began)
            raw.append(raw_transfer(data, room))
    heading(f"{sum(sizes) / 1e9:.3f} GB of a state, restored by a rank that has nothing, {ROUNDS} rounds")
    print(f"  from other workers' memory, checked: {spread(lent[1:])}")
    print(f"  from storage, a folder that is in the page cache: {spread(stored[1:])}")
    print(f"  the same bytes through a socket, unchecked: {spread(raw[1:])}")
    print(f"  ratio to the socket alone: {median(lent[1:]) / median(raw[1:]):.2f}x")
