"""Deaths in chosen phases of a training: what a test orders, and what was really hit.

The processes of the run carry it out themselves (`doomed/sitecustomize.py`), each at the very point.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

#: With how many points a phase has that one process passes by in a step or a save of `train.py`, or more.
PHASES = {"forward": 6, "backward": 4, "step": 30, "staging": 12, "persisting": 5, "commit": 4}

VICTIMS = ("rank", "agent", "both")


@dataclass(frozen=True)
class Order:
    """Somebody is to die in an attempt.

    Attributes:
        phase: one of `PHASES`; or restoring, where the ranks of a worker fetch files for each other.
        points: how many of its points the process passes before it kills.
        step: not before this one.
        victim: one of `VICTIMS`; of the worker that comes to the point.
        place: of that worker. Who commits is whoever comes last.
        later: steps that ranks train on, where it is their agent that comes to the point.
        world: only with so many ranks. None: with any number.
    """

    phase: str
    points: int
    step: int
    victim: str
    place: int
    later: int
    world: int | None = None


def order(phase: str, step: int, luck: random.Random, world: int | None = None) -> Order:
    """One in a phase, everything else by chance: of two workers, or of so many."""
    points, place = luck.randrange(PHASES[phase]), luck.randrange(world or 2)
    return Order(phase, points, step, luck.choice(VICTIMS), place, luck.randint(0, 3), world)


class Doom:
    """The deaths of one run.

    Args:
        folder: for orders, and for what was hit.
        monkeypatch: of the test: what it starts from now on knows of them.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        paths = [str(Path(__file__).parent / "doomed"), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        monkeypatch.setenv("ELASTIC_TEST_DOOM", str(folder))

    def give(self, *orders: Order) -> None:
        """One for each attempt, from the first on."""
        for attempt, one in enumerate(orders, 1):
            (self._folder / f"order-{attempt:04d}.json").write_text(json.dumps(asdict(one)))

    def hits(self) -> list[dict[str, Any]]:
        """What was hit, attempt after attempt: phase, where, step, world and victim."""
        return [json.loads(path.read_bytes()) for path in sorted(self._folder.glob("hit-*.json"))]

    def began(self) -> list[tuple[int, int]]:
        """Numbers of ranks, and from which step on there were so many for the first time since there were others."""
        found: list[tuple[int, int]] = []
        for line in (self._folder / "began").read_text().splitlines():
            world, step = map(int, line.split())
            if not found or found[-1][0] != world:
                found.append((world, step))
        return found
