"""Rules such as `val_loss < 0.2`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.conditions.metric_rule import Comparison, MetricRule, parse_rule
from airflow_elastic.spec.errors import SpecError

names = st.from_regex(r"[A-Za-z_][\w./@-]{0,20}", fullmatch=True)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
comparisons = st.builds(Comparison, names, st.sampled_from(["<", "<=", ">", ">=", "=="]), numbers)


@given(st.lists(comparisons, min_size=1, max_size=4), st.booleans())
def test_what_is_written_is_read_again(parts: list[Comparison], spaced: bool) -> None:
    space = " " if spaced else ""
    text = " and ".join(f"{one.metric}{space}{one.operator}{space}{one.value!r}" for one in parts)
    assert parse_rule(text) == MetricRule(tuple(parts))


@given(comparisons, numbers)
def test_a_comparison_is_that_of_python(one: Comparison, value: float) -> None:
    wanted = {
        "<": value < one.value,
        "<=": value <= one.value,
        ">": value > one.value,
        ">=": value >= one.value,
        "==": value == one.value,
    }[one.operator]
    assert one.holds({one.metric: value}) is wanted
    assert one.holds({}) is False
    assert one.holds({one.metric: math.nan}) is False


def test_all_comparisons_must_hold() -> None:
    rule = parse_rule("val_loss < 0.2 and accuracy >= 0.9")
    assert rule.holds({"val_loss": 0.1, "accuracy": 0.9})
    assert not rule.holds({"val_loss": 0.1, "accuracy": 0.8})
    assert not rule.holds({"val_loss": 0.1})
    assert str(rule) == "val_loss < 0.2 and accuracy >= 0.9"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "val_loss",
        "val_loss <",
        "< 0.2",
        "val_loss < low",
        "a < b < 3",
        "a < 1 or b < 2",
        "a = 1",
        "a != 1",
        None,
        3,
    ],
)
def test_other_forms_are_refused_with_the_form(text: object) -> None:
    with pytest.raises(SpecError, match=r"such as `val_loss < 0\.2`; several are joined by `and`"):
        parse_rule(text)  # type: ignore[arg-type]
