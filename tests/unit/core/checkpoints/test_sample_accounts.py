"""What the accounts of ranks prove."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal, identity
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.inspect.samples import verify_samples
from airflow_elastic.core.checkpoints.sample_accounts import Proof, prove
from airflow_elastic.runtime.data.sampler import ElasticBatches
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.sample_records import Account, Consumed, Ended, Span
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RunSpec

LENGTH, BATCH, EPOCHS = 37, 8, 3
A_DAY = -(-LENGTH // BATCH)


def life(attempt: int, world: int, from_step: int, to_step: int) -> list[Account]:
    """What the ranks of an attempt tell that trains from one step to another, as our sampler has them consume."""
    accounts = []
    for rank in range(world):
        steps = []
        for step in range(from_step + 1, to_step + 1):
            epoch, number = divmod(step - 1, A_DAY)
            batches = ElasticBatches(
                LENGTH, global_batch=BATCH, epoch=epoch, offset=number * BATCH, rank=rank, world_size=world
            )
            share = next(iter(batches)) if batches.weight(batches.size_at(number * BATCH)) else []
            steps.append(Consumed(step, epoch, tuple(share)))
        accounts.append(Account(attempt, 1, rank, world, from_step, LENGTH, tuple(steps)))
    return accounts


def test_a_run_without_failures_is_proved() -> None:
    proof = prove(life(1, 3, 0, EPOCHS * A_DAY), EPOCHS * A_DAY)
    assert proof.holds
    assert [(epoch.counted, epoch.complete, epoch.world_sizes) for epoch in proof.epochs] == [
        (LENGTH, True, (3,))
    ] * 3
    assert proof.done_again == 0


@pytest.mark.parametrize("lost", [False, True])
def test_another_global_batch_is_no_loss_and_a_batch_that_is_not_whole_is(lost: bool) -> None:
    """Which samples a step is of does not depend on how many others are."""
    at, steps = 0, []
    for step, size in enumerate(
        (16, 16, 5), 1
    ):  # ...of which the first two are of an attempt with larger ones
        steps.append(Consumed(step, 0, tuple(range(at, at + size)), size=size))
        at += size
    steps += [Consumed(step, 1, tuple(range(4 * (step - 4), 4 * (step - 3))), size=4) for step in range(4, 8)]
    if lost:
        steps[-1] = replace(steps[-1], samples=steps[-1].samples[1:])
    accounts = [
        Account(1, 1, 0, 1, 0, LENGTH, tuple(steps[:3])),
        Account(2, 1, 0, 1, 3, LENGTH, tuple(steps[3:]), went_on_from=(1, 1)),
    ]
    proof = prove(accounts, 7)
    assert proof.holds is not lost
    assert [(epoch.counted, epoch.expected) for epoch in proof.epochs] == [(37, 37), (16 - lost, 16)]


def test_restarts_and_other_world_sizes_are_followed() -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    accounts, committed = [], 0
    for attempt in range(1, 9):
        reached = min(EPOCHS * A_DAY, committed + luck.randint(0, 5))
        accounts += life(attempt, luck.randint(1, 5), committed, reached)
        committed = luck.randint(committed, reached)  # the steps after that are lost, and done again
    accounts += life(9, 2, committed, EPOCHS * A_DAY)
    luck.shuffle(accounts)
    assert prove(accounts, EPOCHS * A_DAY).holds, seed


def spoilt(change: str, last: int) -> Proof:
    accounts = life(1, 2, 0, last)
    first = accounts[0]
    steps = list(first.steps)
    match change:
        case "a sample twice":
            steps[2] = Consumed(3, 0, (*steps[2].samples, steps[0].samples[0]))
        case "a sample lost":
            steps[2] = Consumed(3, 0, steps[2].samples[1:])
        case "a step untold":
            del steps[2]
        case "a rank untold":
            del accounts[1]
    accounts[0] = Account(1, 1, 0, 2, 0, LENGTH, tuple(steps))
    return prove(accounts, last)


@pytest.mark.parametrize("last", [A_DAY, A_DAY - 1])
@pytest.mark.parametrize("change", ["a sample twice", "a sample lost", "a step untold", "a rank untold"])
def test_what_is_wrong_is_found(change: str, last: int) -> None:
    proof = spoilt(change, last)
    assert not proof.holds
    assert bool(proof.epochs and proof.epochs[0].repeated) is (change == "a sample twice")
    assert bool(proof.untold) is change.endswith("untold")


def test_an_epoch_that_is_not_over_misses_nothing() -> None:
    proof = prove(life(1, 2, 0, 3), 3)
    assert proof.holds
    assert [(epoch.counted, epoch.complete) for epoch in proof.epochs] == [(3 * BATCH, False)]


def test_an_epoch_that_ended_before_its_time_is_no_proof() -> None:
    steps = tuple(
        Consumed(step, step // 4, tuple(range(BATCH * (step % 4), BATCH * (step % 4) + BATCH)))
        for step in (1, 2, 3)
    )
    early = Consumed(4, 1, tuple(range(BATCH)))
    proof = prove([Account(1, 1, 0, 1, 0, LENGTH, (*steps, early))], 4)
    assert [epoch.complete for epoch in proof.epochs] == [False, False]
    assert not proof.holds


def test_an_epoch_that_is_left_out_is_no_proof() -> None:
    steps = tuple(
        Consumed(step, 2 * (step > A_DAY), tuple(range(at, min(at + BATCH, LENGTH))))
        for step in range(1, 2 * A_DAY + 1)
        for at in ((step - 1) % A_DAY * BATCH,)
    )
    proof = prove([Account(1, 1, 0, 1, 0, LENGTH, steps)], 2 * A_DAY)
    assert [epoch.number for epoch in proof.epochs] == [0, 2]
    assert proof.left_out == ((0, 1),)
    assert not proof.holds


def test_what_led_to_a_checkpoint_counts_and_not_who_came_by_last() -> None:
    """The checkpoint of step 8 could not be read in the second attempt, and in the third it could."""
    first, second, third = life(1, 1, 0, 8), life(2, 2, 4, 6), life(3, 1, 8, EPOCHS * A_DAY)
    second = [replace(one, went_on_from=(1, 1)) for one in second]
    third = [replace(one, went_on_from=(1, 1)) for one in third]
    accounts = [*first, *second, *third]
    proof = prove(accounts, EPOCHS * A_DAY)
    assert proof.holds
    assert (proof.epochs[0].world_sizes, proof.done_again) == ((1,), 2)
    assert not prove([*second, *third], EPOCHS * A_DAY).holds, "others' steps prove nothing"
    # The one of step 6, which the second attempt saved, is held against what that one did.
    assert prove(accounts, 6, (2, 1)).epochs[0].world_sizes == (1, 2)
    assert prove(accounts, 6, (1, 1)).epochs[0].world_sizes == (1,)
    assert prove(accounts, 6, (4, 1)).untold == (1, 2, 3, 4, 5, 6)


def test_where_it_is_not_told_who_saved_it_was_somebody_before() -> None:
    """The second attempt went on from what disks had of step 6; the third, which saw neither that nor 10, from 4."""
    accounts = [
        *life(1, 1, 0, 8),
        *life(2, 1, 6, 10),
        *(replace(one, went_on_from=(1, 1)) for one in life(3, 1, 4, 5)),
        *(replace(one, went_on_from=(2, 1)) for one in life(4, 1, 10, EPOCHS * A_DAY)),
    ]
    assert prove(accounts, EPOCHS * A_DAY).holds


#: Two ranks, three shards of 5, 3 and 0 samples, global batches of 4: rank 0 has shard 0, rank 1 has the others.
STREAM = {
    0: [
        Consumed(1, 0, spans=(Span(0, 0, 2),)),
        Consumed(2, 0, spans=(Span(0, 2, 3),), ended=(Ended(0, 5),)),
    ],
    1: [
        Consumed(1, 0, spans=(Span(1, 0, 2),), ended=(Ended(1, 3), Ended(2, 0))),
        Consumed(2, 0, spans=(Span(1, 2, 1),)),
    ],
}


def streamed(steps: dict[int, list[Consumed]], to_step: int) -> Proof:
    accounts = [Account(1, 1, rank, 2, 0, 0, tuple(steps[rank][:to_step]), shards=3) for rank in (0, 1)]
    return prove(accounts, to_step)


def test_a_stream_is_proved_when_all_its_shards_have_ended() -> None:
    half, whole = streamed(STREAM, 1), streamed(STREAM, 2)
    assert half.holds
    assert [(epoch.length, epoch.counted, epoch.complete) for epoch in half.epochs] == [(0, 4, False)]
    assert whole.holds
    assert [(epoch.length, epoch.counted, epoch.complete) for epoch in whole.epochs] == [(8, 8, True)]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Consumed(2, 0, spans=(Span(1, 1, 1),)), {"repeated": ((1, 1),), "missing": ((1, 2),)}),
        (Consumed(2, 0, spans=(Span(1, 5, 1),)), {"repeated": (), "missing": ((1, 2),)}),
        (Consumed(2, 0), {"repeated": (), "missing": ((1, 2),)}),
    ],
    ids=["twice", "beyond the end", "lost"],
)
def test_what_is_wrong_in_a_stream_is_found(change: Consumed, what: dict[str, object]) -> None:
    proof = streamed({**STREAM, 1: [STREAM[1][0], change]}, 2)
    assert not proof.holds
    (epoch,) = proof.epochs
    assert {"repeated": epoch.repeated, "missing": epoch.missing} == what


def test_a_shard_that_changes_its_length_is_found() -> None:
    again = Consumed(2, 0, spans=(Span(1, 2, 1),), ended=(Ended(1, 4),))
    proof = streamed({**STREAM, 1: [STREAM[1][0], again]}, 2)
    assert (proof.unsteady, proof.holds) == ((1,), False)


def test_a_stream_of_which_a_shard_was_never_opened_is_no_proof() -> None:
    first = Consumed(1, 0, spans=(Span(1, 0, 2),), ended=(Ended(1, 3),))
    after = Consumed(3, 1, spans=(Span(1, 0, 3),))
    steps = {0: [*STREAM[0], Consumed(3, 1, spans=(Span(0, 0, 1),))], 1: [first, STREAM[1][1], after]}
    proof = streamed(steps, 3)
    assert [epoch.length for epoch in proof.epochs] == [0, 0]
    assert not proof.holds


def test_it_is_held_against_the_newest_checkpoint_that_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not against the name of a manifest that nobody can read, nor of one of another run, which came farther."""
    store = open_store(str(tmp_path))
    begun = ev.RunCreated(0.0, RunSpec(("train.py",)), scales_in_place=True, adopts=())
    Journal(store).append(0, begun)
    for account in life(1, 2, 0, 7):
        key = layout.account(1, 1, 7, account.rank)
        store.put(key, json.dumps(encode(account)).encode())
    for step, run in ((5, identity(store)), (7, identity(store)), (11, "0123456789abcdef")):
        data = layout.checkpoint_data(step, 1, 1)
        checkpoints.commit(store, Manifest(step, 1, 1, 2, 0.0, f"{data.rstrip('/')}/", (), run=run))
    store.put(layout.manifest(9), b"no manifest")
    assert verify_samples(store, as_json=False) == 0
    assert "samples of 7 steps: each counts exactly once" in capsys.readouterr().out
    store.delete([layout.manifest(5), layout.manifest(7)])
    with pytest.raises(InvalidInput, match=r"no readable checkpoint of its own among \[9, 11\]: look with"):
        verify_samples(store, as_json=False)
