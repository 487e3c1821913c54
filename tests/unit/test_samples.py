"""What the accounts of ranks prove."""

from __future__ import annotations

import random

import pytest

from airflow_elastic.core.samples import Proof, prove
from airflow_elastic.runtime.sampler import ElasticBatches
from airflow_elastic.spec.consumed import Account, Consumed

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
