"""Proves that every sample of an epoch counts exactly once, despite failures of the ranks that consumed it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from airflow_elastic.spec.checkpoints.sample_records import Account, Consumed, Data

#: An index into the data set; for a stream, the number of a shard and of the sample in it.
Sample = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a run.

    Attributes:
        number: from 0.
        length: its number of samples; 0 while that is unknown, because not all shards of a stream were read to the end.
        expected: how many samples its steps should have consumed: the sum of their global batches. Where accounts lack
            the size of a global batch, it is the largest one.
        counted: how many samples count, each once or more.
        missing: samples that were not consumed, though the epoch is over.
        repeated: samples that count more than once.
        world_sizes: numbers of ranks that consumed it, one after the other.
        complete: whether it is over.
        phase: number of its phase, from 0.
    """

    number: int
    length: int
    expected: int
    counted: int
    missing: tuple[Sample, ...]
    repeated: tuple[Sample, ...]
    world_sizes: tuple[int, ...]
    complete: bool
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """What the accounts of a run prove.

    Attributes:
        step: the accounts are compared with the checkpoint of this step.
        epochs: all of them.
        untold: steps for which the account of at least one rank is missing.
        done_again: steps that were lost with a failure and repeated.
        unsteady: shards that had another length when they were read again.
    """

    step: int
    epochs: tuple[Epoch, ...]
    untold: tuple[int, ...]
    done_again: int
    unsteady: tuple[int, ...] = ()

    @property
    def left_out(self) -> tuple[tuple[int, int], ...]:
        """Skipped epochs, without any sample, before the newest epoch of their phase: the phase, and the epoch."""
        told = {(epoch.phase, epoch.number) for epoch in self.epochs}
        return tuple(
            (phase, number)
            for phase, newest in sorted(self._newest.items())
            for number in range(newest)
            if (phase, number) not in told
        )

    @property
    def _newest(self) -> dict[int, int]:
        """The newest epoch of each phase."""
        return {epoch.phase: epoch.number for epoch in self.epochs}

    @property
    def holds(self) -> bool:
        """Whether every sample counts exactly once, and every step is accounted for.

        Every epoch must be over, except the newest of its phase, and none may be skipped.
        """
        return (
            not self.untold
            and not self.unsteady
            and not self.left_out
            and all(epoch.complete for epoch in self.epochs if epoch.number < self._newest[epoch.phase])
            and all(
                epoch.counted == epoch.expected and not epoch.repeated and not epoch.missing
                for epoch in self.epochs
            )
        )


@dataclass
class _Generation:
    """The accounts of all ranks of one generation, together."""

    world_size: int
    from_step: int
    went_on_from: tuple[int, int] | None = None
    by_step: dict[int, dict[int, Consumed]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class _Count:
    """The count of one epoch: its samples, the intended size of each step, and the numbers of ranks."""

    samples: Counter[Sample] = field(default_factory=Counter)
    meant: list[int] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)


class _Data:
    """The data of a phase, from all accounts together."""

    def __init__(self, accounts: Iterable[Account], phase: int) -> None:
        self._length = self._shards = 0
        self._lengths: dict[int, set[int]] = defaultdict(set)
        for account in accounts:
            for data in account.data or (Data(0, account.length, account.shards),):
                if data.phase == phase:
                    self._length = max(self._length, data.length)
                    self._shards = max(self._shards, data.shards)
            own = (consumed for consumed in account.steps if consumed.phase == phase)
            for ended in (one for consumed in own for one in consumed.ended):
                self._lengths[ended.shard].add(ended.length)
        self.unsteady = tuple(sorted(at for at, lengths in self._lengths.items() if len(lengths) > 1))

    @property
    def length(self) -> int:
        """Samples of an epoch; 0 if unknown."""
        if not self._shards:
            return self._length
        known = len(self._lengths) == self._shards
        return sum(max(lengths) for lengths in self._lengths.values()) if known else 0

    def samples(self) -> Iterator[Sample]:
        """All samples, if the length is known."""
        if not self._shards:
            yield from range(self._length)
        for shard, lengths in self._lengths.items():
            yield from ((shard, number) for number in range(max(lengths)))


def prove(accounts: Iterable[Account], step: int, saved_by: tuple[int, int] | None = None) -> Proof:
    """Follow the steps that led to the checkpoint of `step`, and count what was consumed in them.

    A generation goes on from the checkpoint that it restored. If a step was done twice, the one that led to the
    checkpoint counts.

    Args:
        accounts: of all ranks.
        step: of the checkpoint.
        saved_by: attempt and generation in its manifest. Default: the last generation that did this step.
    """
    accounts = list(accounts)
    generations = _generations(accounts)
    lineage = _lineage(generations, step, saved_by)
    counts: dict[tuple[int, int], _Count] = defaultdict(_Count)
    untold, done, batch = [], 0, 0
    for number in range(1, step + 1):
        done += sum(number in one.by_step for one in generations.values())
        one = lineage.get(number)
        shares = list(one.by_step.get(number, {}).values()) if one else []
        if one is None or len(shares) < one.world_size:
            untold.append(number)
            continue
        count = counts[shares[0].phase, shares[0].epoch]
        for share in shares:
            count.samples.update(_samples(share))
        batch = max(batch, sum(1 for share in shares for _ in _samples(share)))
        count.meant.append(max(share.size for share in shares))
        if count.world_sizes[-1:] != [one.world_size]:
            count.world_sizes.append(one.world_size)
    data = {phase: _Data(accounts, phase) for phase in sorted({phase for phase, _ in counts})}
    epochs = tuple(_epoch(*which, counts[which], data[which[0]], batch) for which in sorted(counts))
    unsteady = tuple(shard for one in data.values() for shard in one.unsteady)
    return Proof(step, epochs, tuple(untold), max(0, done - (step - len(untold))), unsteady)


def _lineage(
    generations: dict[tuple[int, int], _Generation], step: int, saved_by: tuple[int, int] | None
) -> dict[int, _Generation]:
    """The generation that did each step before a checkpoint: backwards, along the checkpoints that were restored.

    The generation that saved a checkpoint may be unknown: in accounts of earlier releases, and for checkpoints
    recovered from workers' disks. Then it is the last earlier generation that did that step.
    """
    found: dict[int, _Generation] = {}
    before = [*generations]
    while step > 0:
        if saved_by is None:
            saved_by = next((key for key in reversed(before) if generations[key].from_step < step), None)
        one = generations.get(saved_by) if saved_by is not None else None
        if saved_by is None or one is None or one.from_step >= step:
            break
        before = [key for key in before if key < saved_by]
        found.update(dict.fromkeys(range(one.from_step + 1, step + 1), one))
        step, saved_by = one.from_step, one.went_on_from
    return found


def _generations(accounts: Iterable[Account]) -> dict[tuple[int, int], _Generation]:
    """By attempt and generation, in the order in which they trained."""
    found: dict[tuple[int, int], _Generation] = {}
    for account in accounts:
        new = _Generation(account.world_size, account.from_step, account.went_on_from)
        one = found.setdefault((account.attempt, account.generation), new)
        for consumed in account.steps:
            one.by_step[consumed.step][account.rank] = consumed
    return dict(sorted(found.items()))


def _samples(share: Consumed) -> Iterator[Sample]:
    yield from share.samples
    for span in share.spans:
        yield from ((span.shard, number) for number in range(span.start, span.start + span.count))


def _epoch(phase: int, number: int, count: _Count, data: _Data, batch: int) -> Epoch:
    samples, length = count.samples, data.length
    steps_had = sum(size or batch for size in count.meant)
    expected = min(length, steps_had) if length else steps_had
    complete = expected == length
    return Epoch(
        number,
        length,
        expected,
        counted=len(samples),
        missing=tuple(sorted(set(data.samples()) - samples.keys())) if complete else (),
        repeated=tuple(sorted(sample for sample, times in samples.items() if times > 1)),
        world_sizes=tuple(count.world_sizes),
        complete=complete,
        phase=phase,
    )
