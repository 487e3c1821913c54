"""`val_loss < 0.2`: a rule over the metrics of a checkpoint. It is parsed, never run as code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_elastic.spec.errors import Problem, SpecError

#: The allowed form, in words.
FORM = "a metric, one of < <= > >= ==, and a number, such as `val_loss < 0.2`; several are joined by `and`"

#: What a comparison means, by its sign.
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
#: The pattern of a number.
NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"

_COMPARISON = re.compile(
    rf"\s*(?P<metric>[^\s<>=]+)\s*(?P<operator><=|>=|==|<|>)\s*(?P<value>{NUMBER})\s*", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A metric, an operator of `OPERATORS`, and the number it is compared with."""

    metric: str
    operator: str
    value: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether the metric is there and fulfils this. NaN fulfils nothing."""
        return self.metric in metrics and OPERATORS[self.operator](metrics[self.metric], self.value)

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.value:g}"


@dataclass(frozen=True, slots=True)
class MetricRule:
    """Comparisons that must all hold."""

    comparisons: tuple[Comparison, ...]

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether all comparisons hold."""
        return all(one.holds(metrics) for one in self.comparisons)

    def __str__(self) -> str:
        return " and ".join(map(str, self.comparisons))


def parse_rule(text: str, name: str = "metric") -> MetricRule:
    """The rule of a text such as `val_loss < 0.2 and accuracy >= 0.9`.

    Args:
        text: the rule.
        name: of the parameter, for the error.

    Raises:
        SpecError: the text has another form.
    """
    found = comparisons(text, name, _COMPARISON, FORM)
    return MetricRule(tuple(Comparison(one["metric"], one["operator"], float(one["value"])) for one in found))


def comparisons(text: object, name: str, pattern: re.Pattern[str], form: str) -> list[re.Match[str]]:
    """The comparisons that a rule joins by `and`.

    Args:
        text: the rule.
        name: of the parameter, for the error.
        pattern: of one comparison.
        form: the allowed form, in words.

    Raises:
        SpecError: the text has another form.
    """
    parts = re.split(r"\sand\s", text) if isinstance(text, str) else []
    found = [match for match in map(pattern.fullmatch, parts) if match is not None]
    if not parts or len(found) < len(parts):
        raise SpecError(Problem(name, text, form))
    return found
