"""`accuracy > promoted`: a rule for a model that may replace the promoted one. It is parsed, never run as code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_elastic.core.conditions.metric_rule import NUMBER, OPERATORS, comparisons
from airflow_elastic.spec.errors import InvalidInput

#: The allowed form, in words.
FORM = (
    "a metric, one of < <= > >= ==, and a number or the promoted model's value, such as `accuracy > promoted`, "
    "`accuracy > promoted + 0.01` or `loss < promoted * 0.99`; several are joined by `and`"
)

_TERM = re.compile(
    r"\s*(?P<metric>[^\s<>=]+)\s*(?P<operator><=|>=|==|<|>)\s*"
    rf"((?P<number>{NUMBER})|promoted(\s*(?P<change>[-+*])\s*(?P<amount>(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?))?)\s*",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Term:
    """A comparison of a candidate's metric.

    Attributes:
        metric: its name.
        operator: of `OPERATORS`.
        number: what it is compared with; with `promoted`, what its value there is changed by.
        promoted: None for a number; else how the promoted model's value is changed: `+`, `-` or `*`.
    """

    metric: str
    operator: str
    number: float
    promoted: str | None = None

    def bound(self, promoted: Mapping[str, float]) -> float:
        """The value that the candidate's metric is compared with."""
        if self.promoted is None:
            return self.number
        value = promoted[self.metric]
        if self.promoted == "*":
            return value * self.number
        return value - self.number if self.promoted == "-" else value + self.number

    def __str__(self) -> str:
        if self.promoted is None:
            return f"{self.metric} {self.operator} {self.number:g}"
        is_plain = self.number == (1.0 if self.promoted == "*" else 0.0)
        change = "" if is_plain else f" {self.promoted} {self.number:g}"
        return f"{self.metric} {self.operator} promoted{change}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate may be promoted.

    Attributes:
        holds: whether the whole rule does.
        reasons: a sentence with both values for each comparison that does not hold.
    """

    reasons: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True)
class PromotionRule:
    """Comparisons that must all hold."""

    terms: tuple[Term, ...]

    def judge(self, metrics: Mapping[str, float], promoted: Mapping[str, float] | None) -> Verdict:
        """Whether the candidate may replace the promoted model.

        Args:
            metrics: of the candidate. NaN fulfils nothing.
            promoted: of the promoted model. None: nothing is promoted, so every comparison with it holds.

        Raises:
            InvalidInput: a metric of the rule is unknown, for the candidate or the promoted model.
        """
        reasons = []
        for term in self.terms:
            value = _known(metrics, term.metric, "the candidate", "evaluate it, or give its metrics")
            if term.promoted is None:
                bound = term.number
            elif promoted is None:
                if math.isnan(value):
                    reasons.append(f"{term.metric} is nan")
                continue
            else:
                _known(promoted, term.metric, "the promoted model", "evaluate it too, or give its metrics")
                bound = term.bound(promoted)
            if not OPERATORS[term.operator](value, bound):
                has = "" if term.promoted is None else f" (the promoted model has {promoted[term.metric]:g})"  # type: ignore[index]
                reasons.append(f"{term.metric} {value:g} is not {term.operator} {bound:g}{has}")
        return Verdict(tuple(reasons))

    def __str__(self) -> str:
        return " and ".join(map(str, self.terms))


def _known(metrics: Mapping[str, float], name: str, whose: str, advice: str) -> float:
    if name not in metrics:
        there = ", ".join(sorted(metrics)) or "none"
        raise InvalidInput(f"{whose} has no metric {name!r}; it has: {there}; {advice}")
    return metrics[name]


def parse_promotion_rule(text: str, name: str = "rule") -> PromotionRule:
    """The rule of a text such as `accuracy > promoted and latency_ms < 50`.

    Args:
        text: the rule.
        name: of the parameter, for the error.

    Raises:
        SpecError: the text has another form.
    """
    return PromotionRule(tuple(map(_term, comparisons(text, name, _TERM, FORM))))


def _term(found: re.Match[str]) -> Term:
    if found["number"] is not None:
        return Term(found["metric"], found["operator"], float(found["number"]))
    change = found["change"] or "+"
    return Term(found["metric"], found["operator"], float(found["amount"] or 0), change)
