"""Which siblings run on a day."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

import pytest

from tests.support.rotating import DAYS, turns

pytest_plugins = ["pytester"]

MONDAY = date(2026, 3, 2)


def names(count: int) -> list[str]:
    return [f"test_it[{number}]" for number in range(count)]


def run_on(count: int, day: date, family: str = "family") -> set[str]:
    return {name for name, turn in turns(family, names(count), day).items() if turn == day}


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8, 20])
@pytest.mark.parametrize("begin", [MONDAY, date(2027, 12, 28)])
def test_some_run_each_day_and_all_within_a_week(count: int, begin: date) -> None:
    days = [run_on(count, begin + timedelta(days=number)) for number in range(DAYS)]
    assert all(1 <= len(day) <= -(-count // DAYS) for day in days)
    assert set.union(*days) == set(names(count))


def test_the_next_turn_is_told() -> None:
    for name, turn in turns("family", names(10), MONDAY).items():
        assert MONDAY <= turn < MONDAY + timedelta(days=DAYS)
        assert name in run_on(10, turn)


def test_the_order_of_collection_does_not_matter() -> None:
    assert turns("family", names(9), MONDAY) == turns("family", names(9)[::-1], MONDAY)


def test_families_do_not_all_begin_on_one_day() -> None:
    firsts = Counter(min(run_on(7, MONDAY, family=str(number))) for number in range(200))
    assert len(firsts) == DAYS
    assert max(firsts.values()) < 60


def test_no_siblings_are_no_turns() -> None:
    assert turns("family", (), MONDAY) == {}


TESTS = """
    import pytest

    @pytest.mark.siblings
    @pytest.mark.parametrize("case", range(3))
    def test_cases(case): pass

    @pytest.mark.siblings("named")
    def test_one(): pass

    @pytest.mark.siblings("named")
    def test_other(): pass

    @pytest.mark.siblings("named")
    @pytest.mark.slow
    def test_slow(): pass

    def test_alone(): pass
"""

INI = """
    [pytest]
    asyncio_default_fixture_loop_scope = function
    markers =
        siblings
        slow
"""

CONFTEST = """
    import datetime
    import pytest
    from tests.support.rotating import rotate

    def pytest_collection_modifyitems(items):
        rotate(items, datetime.date(2026, 3, 2))
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    return pytester


def test_others_are_skipped_with_the_day_of_their_turn(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, skipped=3)
    result.stdout.fnmatch_lines("*a sibling runs today; this one: 2026-03-0[34]*")


@pytest.mark.parametrize("test", ["test_cases[0]", "test_cases[1]", "test_one", "test_other"])
def test_what_is_named_alone_runs(project: pytest.Pytester, test: str) -> None:
    module = next(project.path.glob("test_*.py")).name
    project.runpytest_inprocess(f"{module}::{test}", "-p", "no:cacheprovider").assert_outcomes(passed=1)
