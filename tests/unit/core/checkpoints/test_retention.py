"""Which checkpoints stay, and that what stays is really there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoint_retention import pruning
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Entry, Store
from airflow_elastic.core.checkpoints.retention import to_remove
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.manifest import MANIFEST_VERSION, Manifest, StoredFile
from airflow_elastic.spec.errors import SpecError, StoreError, StoreFull
from tests.support.training.forging import of_release

POLICY = CheckpointPolicy(keep_last=2)
LOSSES = {10: 0.9, 20: 0.2, 30: 0.5, 40: 0.4, 50: 0.6}


def gone(policy: CheckpointPolicy, *pinned: int) -> list[int]:
    return to_remove({step: {"loss": loss} for step, loss in LOSSES.items()}, policy, pinned)


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


def test_of_equal_ones_the_first_is_the_best() -> None:
    """A number that was measured once is told with the saves that follow, too: it is of the weights of then."""
    told = {100: 0.9, 110: 0.9, 120: 0.9, 200: 0.5, 210: 0.5, 220: float("nan")}
    for best, kept in (("max accuracy", 100), ("min accuracy", 200)):
        policy = CheckpointPolicy(keep_last=1, keep_best=best)
        left = set(told) - set(to_remove({step: {"accuracy": one} for step, one in told.items()}, policy))
        assert left == {kept, 220}


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
    left = {step: metrics for step, metrics in saved.items() if step not in to_remove(saved, policy)}
    assert to_remove(left, policy) == []
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


def test_one_that_cannot_be_read_stands_for_no_other(store: Store) -> None:
    store.put(layout.manifest(20), b"torn")
    assert checkpoint_retention.prune(store, replace(POLICY, keep_every_steps=20)) == [10]
    assert checkpoints.steps(store) == [20, 30, 40, 50]


def test_a_pinned_one_is_never_removed(store: Store) -> None:
    checkpoint_retention.pin(store, 10, by="model 0001")
    assert checkpoint_retention.prune(store, replace(POLICY, keep_best="min loss")) == [30]
    assert checkpoints.steps(store) == [10, 20, 40, 50]
    checkpoint_retention.unpin(store, 10)
    assert checkpoint_retention.prune(store, POLICY) == [10, 20]
    assert [entry.key.split("/")[2][:12] for entry in store.list("checkpoints/data/")] == [
        f"{40:012d}",
        f"{50:012d}",
    ]


def test_what_was_set_aside_takes_no_files_of_another_one_along(store: Store) -> None:
    """Its manifest may be a copy of another one's, or name anything."""
    checkpoint_retention.pin(store, 10, by="model 0001")
    store.put("logs/attempt-0001/g01-rank-0.log", b"a line")
    for step, manifest in ((45, layout.manifest(10)), (46, None)):
        sealed = store.get(manifest) if manifest else None
        if sealed is None:
            other = Manifest(46, 1, 1, 1, 0.0, "logs/", files=())
            checkpoints.commit(store, other)
        else:
            store.put(layout.manifest(step), sealed)
        checkpoint_retention.quarantine(store, step, "a copy")
    for step in (60, 70):
        checkpoints.commit(
            store, Manifest(step, 1, 1, 1, 0.0, f"checkpoints/data/{step:012d}-a0001-g01/", files=())
        )
    checkpoint_retention.prune(store, POLICY)
    assert checkpoint_retention.quarantined(store) == {}
    assert [entry.key.split("/")[2][:12] for entry in store.list("checkpoints/data/")] == [f"{10:012d}"]
    assert store.get("logs/attempt-0001/g01-rank-0.log") == b"a line"


def test_the_one_that_was_read_whole_last_stays_until_that_is_known_of_another(store: Store) -> None:
    checkpoint_retention.note_verified(store, 20)
    checkpoint_retention.note_verified(store, None)
    checkpoint_retention.note_verified(store, 25)  # it is not there
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1)) == [10, 30, 40]
    checkpoint_retention.note_verified(store, 50)
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1)) == [20]


def test_the_first_step_of_all_counts_as_well(store: Store) -> None:
    checkpoints.commit(store, Manifest(0, 1, 1, 1, 0.0, f"checkpoints/data/{0:012d}-a0001-g01/", files=()))
    checkpoint_retention.note_verified(store, 0)
    checkpoint_retention.prune(store, POLICY)
    assert checkpoints.steps(store) == [0, 40, 50]


def test_one_that_is_read_back_while_it_is_to_go_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    create = store.create

    def verify(key: str, value: bytes) -> bool:
        checkpoint_retention.note_verified(store, 20)
        return create(key, value)

    monkeypatch.setattr(store, "create", verify)
    assert checkpoint_retention.prune(store, POLICY) == [10, 30]
    assert (checkpoints.steps(store), checkpoint_retention.pinned(store)) == ([20, 40, 50], [])


@pytest.mark.parametrize("word", [b"torn", b"[20]", b'{"step": "20"}', b"{}"])
def test_a_word_of_what_was_read_that_nobody_understands_is_none(store: Store, word: bytes) -> None:
    store.put("checkpoints/verified.json", word)
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1)) == [10, 20, 30, 40]


def test_one_that_is_not_there_cannot_be_pinned(store: Store) -> None:
    with pytest.raises(CheckpointDamaged, match="step 15 has no committed checkpoint"):
        checkpoint_retention.pin(store, 15, by="model 0001")
    assert checkpoint_retention.pinned(store) == []


def test_a_removal_and_a_pin_exclude_each_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pins in the middle of it is refused, or nothing is removed: no pin is believed that does not hold."""
    read, tried = checkpoints.read, []

    def pin_now(of: Store, step: int) -> Manifest:
        if step == 10 and of.get("checkpoints/pins/000000000010.json") and not tried:  # there is a claim
            tried.append(step)
            with pytest.raises(CheckpointDamaged, match=r"step 10 in .* is being removed"):
                checkpoint_retention.pin(of, 10, by="model 0001")
        return read(of, step)

    monkeypatch.setattr(checkpoints, "read", pin_now)
    assert checkpoint_retention.prune(store, POLICY) == [10, 20, 30]
    assert (tried, checkpoint_retention.pinned(store), store.list("checkpoints/pins/")) == ([10], [], [])


def test_on_a_full_disk_room_can_be_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """To remove something must not need any; what is pinned stays."""
    checkpoint_retention.pin(store, 20, by="somebody")

    def full(*_: object) -> bool:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(store, "create", full)
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1)) == [10, 30, 40]
    assert checkpoints.steps(store) == [20, 50]
    assert not store.list("checkpoints/data/000000000010")


def test_what_somebody_pins_who_has_room_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is each user's own, and may be there in the next moment."""
    create, verified = store.create, checkpoint_retention.verified

    def full(*_: object) -> bool:
        raise StoreFull("the disk is full")

    def meanwhile(*_: object) -> int | None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "create", create)
            patched.setattr(pruning, "verified", verified)
            if 10 not in checkpoint_retention.pinned(store):
                checkpoint_retention.pin(store, 10, by="somebody")
        return verified(store)

    monkeypatch.setattr(store, "create", full)
    removed = checkpoint_retention.to_prune(store, replace(POLICY, keep_last=1))
    monkeypatch.setattr(pruning, "to_prune", lambda *_: removed)
    monkeypatch.setattr(pruning, "verified", meanwhile)
    assert 10 not in checkpoint_retention.prune(store, replace(POLICY, keep_last=1))
    assert checkpoint_retention.pinned(store) == [10]
    assert 10 in checkpoints.steps(store)


def test_what_could_not_be_noted_stays_as_well(store: Store) -> None:
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1), [20]) == [10, 30, 40]


def test_a_removal_that_was_cut_off_is_gone_on_with(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(keys: object) -> None:
        raise StoreError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", cut)
        with pytest.raises(StoreError):
            checkpoint_retention.prune(store, POLICY)
    assert checkpoint_retention.pinned(store) == [], "nobody has pinned it"
    assert checkpoint_retention.prune(store, POLICY) == [10, 20, 30]
    assert store.list("checkpoints/pins/") == []


@pytest.mark.parametrize("by", ["a removal", "the next generation"])
def test_a_removal_that_was_cut_off_behind_the_manifest_is_gone_on_with(
    by: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its files would stay as long as the attempt lives."""
    delete = store.delete

    def cut(keys: Iterable[str]) -> None:
        wanted = list(keys)
        if any("/data/" in key for key in wanted):
            raise StoreError("cut off")
        delete(wanted)

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", cut)
        with pytest.raises(StoreError):
            checkpoint_retention.prune(store, POLICY)
    assert checkpoints.steps(store) == [20, 30, 40, 50]
    assert checkpoint_retention.pinned(store) == []
    if by == "a removal":
        assert checkpoint_retention.prune(store, replace(POLICY, keep_last=4)) == [], (
            "there is nothing else to remove"
        )
    else:  # of the same attempt
        checkpoint_retention.remove_uncommitted(store, 1)
    assert [entry.key.split("/")[2][:12] for entry in store.list("checkpoints/data/")] == [
        f"{step:012d}" for step in (20, 30, 40, 50)
    ]
    assert store.list("checkpoints/pins/") == []


def test_what_is_set_aside_meanwhile_keeps_its_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell which files are those of a manifest that cannot be read: all of its step stay."""
    list_, manifest = store.list, "checkpoints/manifests/000000000050.json"
    store.delete([manifest])
    store.put(manifest, b"not what was committed")
    files = store.list(f"checkpoints/data/{50:012d}")
    assert files

    def set_aside(prefix: str = "") -> list[Entry]:
        found = list_(prefix)
        if prefix == layout.QUARANTINE:
            checkpoint_retention.quarantine(store, 50, "damaged")
        return found

    monkeypatch.setattr(store, "list", set_aside)
    checkpoint_retention.remove_uncommitted(store, 2)
    assert list_(f"checkpoints/data/{50:012d}") == files


def test_a_claim_of_long_ago_is_nobodys(store: Store) -> None:
    before = store.list()
    for step in (10, 60):  # of a release that did not say when, too
        at = {"at": time.time() - 7200} if step == 10 else {}
        store.put(
            layout.pin(step), json.dumps({"removing": layout.checkpoint_data(step, 1, 1), **at}).encode()
        )
    checkpoint_retention.remove_uncommitted(store, 2)
    assert store.list() == before


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_being_removed_cannot_be_pinned_and_what_is_pinned_stays(
    taken: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody removes it, an attempt begins, and somebody else promotes it."""
    create = store.create

    def meanwhile(key: str, value: bytes) -> bool:
        done = create(key, value)
        if key == layout.pin(10):
            monkeypatch.setattr(store, "create", create)
            checkpoint_retention.remove_uncommitted(store, 2)
            if taken:  # an hour has passed
                store.delete([key])
                checkpoint_retention.pin(store, 10, by="test")
            else:
                with pytest.raises(CheckpointDamaged, match="is being removed"):
                    checkpoint_retention.pin(store, 10, by="test")
        return done

    monkeypatch.setattr(store, "create", meanwhile)
    checkpoint_retention.prune(store, POLICY)
    assert (10 in checkpoints.steps(store)) == taken
    assert checkpoint_retention.pinned(store) == [10] * taken


@pytest.mark.parametrize(
    "data", ["logs/", "", "checkpoints/data/000000000040-a0001-g01/", "checkpoints/data/"]
)
def test_a_claim_takes_no_files_of_another_one_along(store: Store, data: str) -> None:
    store.put("logs/attempt-0001/g01-rank-0.log", b"a line")
    before = store.list()
    store.put("checkpoints/pins/000000000007.json", json.dumps({"removing": data}).encode())
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=5)) == []
    assert [entry for entry in store.list() if "/pins/" not in entry.key] == before


def test_a_step_that_was_saved_again_is_not_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    create, data = store.create, "checkpoints/data/000000000010-a0002-g01/"

    def saved_again(key: str, value: bytes) -> bool:
        if key == "checkpoints/pins/000000000010.json":
            store.delete(["checkpoints/manifests/000000000010.json"])
            checkpoints.commit(store, Manifest(10, 2, 1, 1, 0.0, data, files=()))
        return create(key, value)

    monkeypatch.setattr(store, "create", saved_again)
    assert checkpoint_retention.prune(store, POLICY) == [20, 30]
    assert checkpoints.read(store, 10).data == data
    assert checkpoint_retention.pinned(store) == []


def test_what_cannot_be_read_is_nothing_to_go_on_from(store: Store) -> None:
    """Of a newer release, of another step, of another run: it neither counts nor is it removed."""
    manifest = store.get("checkpoints/manifests/000000000050.json") or b""
    store.put("checkpoints/manifests/000000000060.json", of_release(manifest, MANIFEST_VERSION + 1))
    store.put("checkpoints/manifests/000000000070.json", manifest)
    assert checkpoint_retention.prune(store, replace(POLICY, keep_last=1)) == [10, 20, 30, 40]
    assert checkpoints.steps(store) == [50, 60, 70]
    with pytest.raises(CheckpointDamaged, match=r"is a copy of the manifest of step 50"):
        checkpoints.read(store, 70)
    assert 70 not in checkpoint_retention.own_steps(store, -1), "the run has not come to its step"
    assert 60 in checkpoint_retention.own_steps(store, -1)


def test_the_only_one_that_has_its_files_stays(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for step in (10, 20):
        data = f"checkpoints/data/{step:012d}-a0001-g01/"
        if step == 10:
            store.put(f"{data}rank-00000.bin", b"bytes")
        files = (StoredFile(f"{data}rank-00000.bin", 5, {}),)
        checkpoints.commit(store, Manifest(step, 1, 1, 1, 0.0, data, files=files))
    with pytest.raises(CheckpointDamaged, match=r"nothing was removed, as what would stay \(20\) is damaged"):
        checkpoint_retention.prune(store, replace(POLICY, keep_last=1))
    assert checkpoints.steps(store) == [10, 20]
