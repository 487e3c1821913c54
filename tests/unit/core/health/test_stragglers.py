"""Ranks that hold all others up."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch

from airflow_elastic.core.event_sentences import straggler_sentence
from airflow_elastic.core.health.stragglers import LASTING_SECONDS, StragglerTracker, stragglers
from airflow_elastic.runtime.session.reporting.forward_timer import ForwardTimer
from airflow_elastic.spec.status import Progress, RankReport, Stretch


def ranks(*seconds: float, step: int = 1) -> tuple[RankReport, ...]:
    return tuple(
        RankReport(rank=i, worker=f"node-{i}", step=step, at=0.0, forward_seconds=each)
        for i, each in enumerate(seconds)
    )


def progress(*seconds: float, attempt: int = 1, generation: int = 1, step: int = 1) -> Progress:
    stretch = Stretch(generation, len(seconds), len(seconds), 0.0)
    return Progress(attempt, at=0.0, step=step, stretches=(stretch,), ranks=ranks(*seconds, step=step))


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ((0.1, 0.1, 0.1, 0.1), []),
        ((0.1, 0.1, 0.21, 0.1), [2]),
        ((0.1, 0.1, 0.19, 0.1), []),
        ((0.1, 0.3), [1]),
        ((0.3, 0.1, 0.1, 0.1, 0.4), [0, 4]),
        ((0.0001, 0.0009), []),
        ((0.0022, 0.0008), []),  # a small network on a busy machine
        ((0.004, 0.0012), []),  # three times as long, but 3 ms hold nobody up
        ((0.006, 0.0008), [0]),
        ((0.0, 0.5), []),
        ((0.5,), []),
        ((), []),
    ],
)
def test_more_than_twice_the_median_of_the_others(seconds: tuple[float, ...], slow: list[int]) -> None:
    assert [rank.rank for rank in stragglers(ranks(*seconds))] == slow


def test_what_is_a_small_part_of_a_step_holds_nobody_up() -> None:
    found = [replace(rank, step_seconds=1.0) for rank in ranks(0.02, 0.02, 0.1)]
    assert stragglers(found) == ()
    assert stragglers(replace(rank, step_seconds=0.5) for rank in found) != ()


def test_it_is_told_once_it_lasts_and_again_when_it_is_over() -> None:
    clock, steps = [0.0], count()
    lag = StragglerTracker(lambda: clock[0])

    def after(seconds: float, *of_ranks: float, generation: int = 1) -> frozenset[int] | None:
        clock[0] += seconds
        return lag.news(progress(*of_ranks, generation=generation, step=next(steps)))

    assert after(0, 0.1, 0.5) is None
    assert after(LASTING_SECONDS / 2, 0.1, 0.5) is None
    assert after(LASTING_SECONDS / 2, 0.1, 0.5) == {1}
    assert after(1, 0.1, 0.5) is None, "it has been told"
    assert after(1, 0.1, 0.1) is None, "one good look is no end"
    assert after(1, 0.1, 0.5) is None
    assert after(LASTING_SECONDS, 0.1, 0.1) == frozenset()
    assert after(1, 0.5, 0.1) is None
    assert after(LASTING_SECONDS - 1, 0.5, 0.1) is None
    assert after(1, 0.5, 0.1, generation=2) is None, "rank 0 of another generation is another process"
    assert after(LASTING_SECONDS, 0.5, 0.1, generation=2) == {0}


def test_who_makes_no_step_is_not_slow() -> None:
    """What was told last stands there for as long as ranks of another generation take to start."""
    clock = [0.0]
    lag = StragglerTracker(lambda: clock[0])
    for clock[0] in (0.0, LASTING_SECONDS / 2, LASTING_SECONDS, 2 * LASTING_SECONDS):
        assert lag.news(progress(0.5, 0.1, step=190)) is None
    assert lag.news(progress(0.5, 0.1, step=191)) == {0}, "it is slow still"


def test_what_is_said() -> None:
    found = progress(0.1, 0.4123, 0.1)
    assert straggler_sentence(found, frozenset({1})) == (
        "rank 1 (node-1) holds the others up: its forward pass takes 0.41 s, the others' 0.1 s"
    )
    assert straggler_sentence(found, frozenset({0, 1})).startswith(
        "rank 0 (node-0), rank 1 (node-1) hold the others up"
    )
    assert straggler_sentence(found, frozenset()) == "no rank holds the others up any more"


class Sleeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ValueError("a bad batch")
        found: torch.Tensor = self.layer(x)
        return found


def test_forward_passes_are_timed_and_no_others() -> None:
    model = Sleeps()
    clock = ForwardTimer(model)
    assert clock.mean() == 0.0
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    mean = clock.mean()
    assert 0 < mean < 1
    assert clock.mean() == 0.0, "it begins anew"
    model.fails = True
    with pytest.raises(ValueError, match="a bad batch"):
        model(torch.ones(1, 2))
    assert clock.mean() == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_its_own_clock_is_read() -> None:
    model = torch.nn.Linear(4096, 4096).cuda()
    clock = ForwardTimer(model)
    x = torch.ones(4096, 4096, device="cuda")
    for _ in range(5):
        model(x)
        torch.cuda.synchronize()
    assert clock.mean() > 0
