"""Whether every sample of an epoch counts exactly once, whatever happened to the ranks that consumed it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_elastic.spec.consumed import Account, Consumed


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a run.

    Attributes:
        number: from 0.
        length: samples that it has.
        expected: how many of them its steps should have consumed, each with a global batch like the others'.
        counted: how many of them count, each once or more.
        missing: samples that nobody has consumed, though the epoch is over.
        repeated: samples that count more than once.
        world_sizes: ranks that consumed it, one after the other.
        complete: whether it is over.
    """

    number: int
    length: int
    expected: int
    counted: int
    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    world_sizes: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """What the accounts of a run prove.

    Attributes:
        step: they are held against the checkpoint of this step.
        epochs: all of them.
        untold: steps of which not every rank has told what it consumed.
        done_again: steps that were done, and lost with a failure, and done again.
    """

    step: int
    epochs: tuple[Epoch, ...]
    untold: tuple[int, ...]
    done_again: int

    @property
    def holds(self) -> bool:
        """Whether every sample counts exactly once, and every step is accounted for."""
        return not self.untold and all(
            epoch.counted == epoch.expected and not epoch.repeated for epoch in self.epochs
        )


@dataclass
class _Generation:
    """What the ranks of one generation tell, together."""

    world_size: int
    from_step: int
    length: int
    by_step: dict[int, dict[int, Consumed]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class _Count:
    """What counts of one epoch: samples, how many in each step, and by how many ranks."""

    samples: Counter[int] = field(default_factory=Counter)
    batches: list[int] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)


def prove(accounts: Iterable[Account], step: int) -> Proof:
    """Follow the steps that led to the checkpoint of `step`, and count what was consumed in them.

    A generation goes on from the checkpoint that it restored: of steps that were done twice, the later ones count.
    """
    generations = _generations(accounts)
    counts: dict[int, _Count] = defaultdict(_Count)
    untold, done = [], 0
    for number in range(1, step + 1):
        done += sum(number in one.by_step for one in generations)
        last = next((one for one in reversed(generations) if one.from_step < number), None)
        shares = list(last.by_step.get(number, {}).values()) if last else []
        if last is None or len(shares) < last.world_size:
            untold.append(number)
            continue
        count = counts[shares[0].epoch]
        for share in shares:
            count.samples.update(share.samples)
        count.batches.append(sum(len(share.samples) for share in shares))
        if count.world_sizes[-1:] != [last.world_size]:
            count.world_sizes.append(last.world_size)
    length = max((one.length for one in generations), default=0)
    batch = max((size for count in counts.values() for size in count.batches), default=0)
    epochs = tuple(_epoch(number, counts[number], length, batch) for number in sorted(counts))
    return Proof(step, epochs, tuple(untold), max(0, done - (step - len(untold))))


def _generations(accounts: Iterable[Account]) -> list[_Generation]:
    """In the order in which they trained."""
    found: dict[tuple[int, int], _Generation] = {}
    for account in accounts:
        new = _Generation(account.world_size, account.from_step, account.length)
        one = found.setdefault((account.attempt, account.generation), new)
        for consumed in account.steps:
            one.by_step[consumed.step][account.rank] = consumed
    return [found[key] for key in sorted(found)]


def _epoch(number: int, count: _Count, length: int, batch: int) -> Epoch:
    samples = count.samples
    expected = min(length, batch * len(count.batches))
    complete = expected == length
    return Epoch(
        number,
        length,
        expected,
        counted=len(samples),
        missing=tuple(sorted(set(range(length)) - samples.keys())) if complete else (),
        repeated=tuple(sorted(sample for sample, times in samples.items() if times > 1)),
        world_sizes=tuple(count.world_sizes),
        complete=complete,
    )
