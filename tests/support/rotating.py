"""Dear tests that are siblings take turns: each day some of them run, and within a week all do.

Siblings are tests that would fail together: what one of them covers, the others cover under other circumstances.

    @pytest.mark.siblings                 # the cases of one parametrized test
    @pytest.mark.siblings("lost workers") # and of all tests that name this family

Who runs follows from the date and the names alone. Slow tests are in no turn: whoever asks for them gets all. A test
that is named on the command line runs, as it has no sibling there.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta

import pytest

#: Each sibling runs at least once in so many days.
DAYS = 7

#: The day that is tested, YYYY-MM-DD: today, where it is not set.
VARIABLE = "ELASTIC_TEST_DATE"


def turns(family: str, siblings: Iterable[str], day: date) -> dict[str, date]:
    """The next day on which each sibling runs, from `day` on.

    Seven at most have one turn each; of more, each turn takes as many as it must. Families begin on different days, so
    that the dear ones do not all fall on one.
    """
    ordered = sorted(siblings)
    period = min(len(ordered), DAYS)
    begin = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4])
    today = (day.toordinal() + begin) % period if ordered else 0
    return {
        name: day + timedelta(days=(place - today) % period)
        for place, name in ((index % period, name) for index, name in enumerate(ordered))
    }


def family_of(item: pytest.Item) -> str | None:
    """The family that a test says it is of; none where it is slow."""
    marker = item.get_closest_marker("siblings")
    if marker is None or item.get_closest_marker("slow"):
        return None
    return str(marker.args[0]) if marker.args else item.nodeid.partition("[")[0]


def rotate(items: Sequence[pytest.Item], day: date) -> None:
    """Skip those whose turn it is not, and say when it is."""
    families: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if (family := family_of(item)) is not None and not item.get_closest_marker("skip"):
            families[family][item.nodeid] = item
    for family, siblings in families.items():
        for name, turn in turns(family, siblings, day).items():
            if turn != day:
                siblings[name].add_marker(pytest.mark.skip(reason=f"a sibling runs today; this one: {turn}"))
