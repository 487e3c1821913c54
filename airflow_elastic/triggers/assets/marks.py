"""How far the events of one run or model have come, and when to look at it again. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The longest time between two looks at a run that saves nothing, seconds. Most runs of a folder have ended.
REST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Mark:
    """What has been seen.

    Attributes:
        number: the newest number, e.g. a step; -1 if there was none.
        since: how many came after the last one that had an event.
    """

    number: int = -1
    since: int = 0

    def back_to(self, newest: int) -> Mark:
        """The mark where that is the newest number now: a run that goes on from an earlier checkpoint saves again."""
        return self if newest >= self.number else Mark(newest, self.since)

    def passing(self, there: Iterable[int], every: int) -> Iterator[tuple[int, bool, Mark]]:
        """Each newer number, whether it has an event (every N-th does), and the mark after it."""
        mark = self
        for number in sorted(there):
            if number > mark.number:
                fires = mark.since + 1 >= every
                mark = Mark(number, 0 if fires else mark.since + 1)
                yield number, fires, mark

    def plain(self) -> int | list[int]:
        """As it is stored."""
        return [self.number, self.since] if self.since else self.number


def mark_of(plain: Any) -> Mark | None:
    """A stored mark; None if this is none."""
    match plain:
        case bool():
            return None
        case int():
            return Mark(plain)
        case [int() as number, int() as since]:
            return Mark(number, since)
    return None


@dataclass(slots=True)
class Pace:
    """When to look again: the longer nothing has changed, the less often. Times are seconds of one clock."""

    poll: float
    changed_at: float
    looked_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time for a look. What has not changed for an hour is looked at every six minutes."""
        pause = max(self.poll, min(REST_SECONDS, (now - self.changed_at) / 10))
        # A look takes place every `poll` seconds at most, and clocks do not keep time to the millisecond.
        return self.looked_at is None or now - self.looked_at >= pause - self.poll / 2
