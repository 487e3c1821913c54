"""Which worker keeps whose state, and that it is said where nobody can."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.runtime.tiers.peers.connection import Address, announce, buddy_of, find_buddy
from airflow_elastic.runtime.tiers.shared_memory import MEMORY, Note
from airflow_elastic.spec.checkpoints.index import Index
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec
from tests.support.training.buddies import pair


@given(units=st.integers(2, 6), unit=st.integers(1, 4))
def test_each_keeps_one_and_none_of_its_own_unit(units: int, unit: int) -> None:
    nodes = tuple(range(10, 10 + units * unit))
    members = Members(1, nodes, 0.0)
    machines = [str(at // unit) for at in range(len(nodes))]
    keepers = [buddy_of(worker, members, unit, machines) for worker in nodes]
    assert sorted(one for one in keepers if one is not None) == list(nodes)
    assert all(
        (worker - 10) // unit != (one - 10) // unit for worker, one in zip(nodes, keepers, strict=True) if one
    )


def test_one_unit_has_nobody_to_keep_it() -> None:
    assert buddy_of(0, Members(1, (0, 1), 0.0), 2, ["a", "b"]) is None


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
    assert find_buddy(store, 0, Members(1, nodes, 0.0), unit) is None
    (said,) = caplog.messages
    assert why in said
    assert f"set workers.min to {2 * unit} or more" in said


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
    assert "no worker keeps another one's state" in first.checkpoint.reason
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
    assert [buddy_of(worker, members, unit, machines) for worker in members.nodes] == keepers


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.buddies"):
        RunSpec.from_dict({"command": ["train.py"], "checkpoint": {"buddies": True}})
