"""Rules such as `accuracy > promoted`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.conditions.metric_rule import OPERATORS
from airflow_elastic.core.conditions.promotion_rule import PromotionRule, Term, parse_promotion_rule
from airflow_elastic.spec.errors import InvalidInput, SpecError

names = st.from_regex(r"[A-Za-z_][\w./@]{0,20}", fullmatch=True)
numbers = st.floats(-1e6, 1e6).map(lambda number: float(f"{number:g}"))
amounts = st.floats(0, 1e6).map(lambda number: float(f"{number:g}"))
signs = st.sampled_from(sorted(OPERATORS))
terms = st.one_of(
    st.builds(Term, names, signs, numbers),
    st.builds(Term, names, signs, amounts, st.sampled_from("+-*")),
)


@given(st.lists(terms, min_size=1, max_size=4))
def test_what_a_rule_says_is_read_as_the_same_rule(parts: list[Term]) -> None:
    rule = PromotionRule(tuple(parts))
    again = parse_promotion_rule(str(rule))
    assert str(again) == str(rule)
    values = {term.metric: 0.5 for term in parts}
    assert again.judge(values, dict.fromkeys(values, 0.25)) == rule.judge(values, dict.fromkeys(values, 0.25))


@given(signs, numbers, numbers, amounts, st.sampled_from("+-*"))
def test_a_comparison_is_that_of_python(
    sign: str, value: float, promoted: float, amount: float, change: str
) -> None:
    rule = parse_promotion_rule(f"m {sign} promoted {change} {amount!r}")
    bound = {"+": promoted + amount, "-": promoted - amount, "*": promoted * amount}[change]
    assert rule.judge({"m": value}, {"m": promoted}).holds is OPERATORS[sign](value, bound)
    assert rule.judge({"m": value}, None).holds, "nothing is promoted"
    assert not rule.judge({"m": math.nan}, {"m": promoted}).holds
    assert not rule.judge({"m": math.nan}, None).holds, "no comparison holds for what is no number"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("accuracy > promoted", True),
        ("accuracy>promoted", True),
        ("accuracy > promoted + 0.01", True),
        ("accuracy > promoted+0.02", False),
        ("accuracy >= promoted * 1.2", False),
        ("accuracy > promoted - .5 and latency_ms < 50", True),
        ("accuracy > promoted and latency_ms < 30", False),
        ("accuracy > 9e-1", True),
    ],
)
def test_examples(text: str, holds: bool) -> None:
    verdict = parse_promotion_rule(text).judge({"accuracy": 0.91, "latency_ms": 40.0}, {"accuracy": 0.895})
    assert verdict.holds is holds


def test_the_reasons_have_both_values() -> None:
    rule = parse_promotion_rule("accuracy > promoted + 0.01 and latency_ms < 30")
    assert rule.judge({"accuracy": 0.9, "latency_ms": 40.0}, {"accuracy": 0.895}).reasons == (
        "accuracy 0.9 is not > 0.905 (the promoted model has 0.895)",
        "latency_ms 40 is not < 30",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy",
        "accuracy > other",
        "accuracy > promoted / 2",
        "accuracy > promoted + ",
        "a > promoted or b > 1",
        "promoted.accuracy > 1 and",
        "accuracy > promoted + -1",
        "__import__('os') > promoted()",
        7,
        None,
    ],
)
def test_another_form_is_refused_with_the_allowed_one(text: str) -> None:
    with pytest.raises(SpecError, match=r"rule: given .*; allowed: a metric, one of < <= > >= =="):
        parse_promotion_rule(text)


def test_an_unknown_metric_is_named_with_those_there_are() -> None:
    rule = parse_promotion_rule("accuracy > promoted")
    with pytest.raises(InvalidInput, match=r"the candidate has no metric 'accuracy'; it has: f1, loss"):
        rule.judge({"loss": 1.0, "f1": 0.5}, None)
    with pytest.raises(InvalidInput, match=r"the promoted model has no metric 'accuracy'; it has: none"):
        rule.judge({"accuracy": 1.0}, {})
