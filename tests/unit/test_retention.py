"""Which checkpoints stay, and that what stays is really there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters import checkpoints, keeping
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.core.retention import superfluous
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.manifest import Manifest

POLICY = CheckpointPolicy(keep_last=2)
LOSSES = {10: 0.9, 20: 0.2, 30: 0.5, 40: 0.4, 50: 0.6}


def gone(policy: CheckpointPolicy, *pinned: int) -> list[int]:
    return superfluous({step: {"loss": loss} for step, loss in LOSSES.items()}, policy, pinned)


def test_the_newest_stay() -> None:
    assert gone(POLICY) == [10, 20, 30]
    assert gone(replace(POLICY, keep_last=9)) == []


def test_one_of_every_so_many_steps_stays() -> None:
    assert gone(replace(POLICY, keep_every_steps=20)) == [10, 30]
    # 25 itself was never saved: the next one stands for it.
    assert gone(replace(POLICY, keep_every_steps=25)) == [10, 20]


@pytest.mark.parametrize(("best", "kept"), [("min loss", 20), ("max loss", 10), ("max accuracy", None)])
def test_the_best_stays(best: str, kept: int | None) -> None:
    assert gone(replace(POLICY, keep_best=best)) == [step for step in (10, 20, 30) if step != kept]


def test_what_somebody_refers_to_stays() -> None:
    assert gone(POLICY, 10, 99) == [20, 30]


@given(
    losses=st.dictionaries(st.integers(0, 500), st.floats(-5, 5), min_size=1, max_size=30),
    last=st.integers(1, 5),
    every=st.none() | st.integers(1, 100),
    best=st.sampled_from([None, "min loss", "max loss"]),
)
def test_pruning_again_removes_nothing_more_and_the_newest_are_never_lost(
    losses: dict[int, float], last: int, every: int | None, best: str | None
) -> None:
    policy = CheckpointPolicy(keep_last=last, keep_every_steps=every, keep_best=best)
    saved = {step: {"loss": loss} for step, loss in losses.items()}
    left = {step: metrics for step, metrics in saved.items() if step not in superfluous(saved, policy)}
    assert superfluous(left, policy) == []
    assert set(sorted(saved)[-last:]) <= left.keys()


@pytest.mark.parametrize("best", ["loss", "least loss", "min ", "min a b", 3])
def test_a_best_of_nothing_is_refused(best: object) -> None:
    with pytest.raises(SpecError, match=r"keep_best: .*`min` or `max` and the name of a metric"):
        CheckpointPolicy(keep_best=best)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = open_store(str(tmp_path))
    for step, loss in LOSSES.items():
        data = f"checkpoints/data/{step:012d}-a0001-g01/"
        found.put(f"{data}rank-00000.bin", b"bytes")
        metrics = {"loss": loss}
        checkpoints.commit(found, Manifest(step, 1, 1, 1, 0.0, data, files=(), metrics=metrics))
    return found


def test_a_pinned_one_is_never_removed(store: Store) -> None:
    keeping.pin(store, 10, by="model 0001")
    assert keeping.prune(store, replace(POLICY, keep_best="min loss")) == [30]
    assert checkpoints.steps(store) == [10, 20, 40, 50]
    keeping.unpin(store, 10)
    assert keeping.prune(store, POLICY) == [10, 20]
    assert [entry.key.split("/")[2][:12] for entry in store.list("checkpoints/data/")] == [
        f"{40:012d}",
        f"{50:012d}",
    ]


def test_one_that_is_not_there_cannot_be_pinned(store: Store) -> None:
    with pytest.raises(CheckpointDamaged, match="step 15 has no committed checkpoint"):
        keeping.pin(store, 15, by="model 0001")
    assert keeping.pinned(store) == []
