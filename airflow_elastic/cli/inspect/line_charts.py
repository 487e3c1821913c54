"""Charts of characters: one line high, or several. Plain ASCII where the terminal cannot show blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS, _PLAIN = " ▁▂▃▄▅▆▇█", " _.-=+*#@"


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Values as a line of characters, from the least to the greatest. None leaves a gap; what is not finite is `!`.

    Args:
        values: at equal distances.
        width: the most characters; neighbours share one if there are more values.
        ascii_only: whether to use ASCII only.
    """
    (line,) = _rows(values, width, 1, ascii_only)
    return line


def chart(values: Sequence[float | None], width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """The same, several lines high; the first line is the top."""
    return _rows(values, width, height, ascii_only)


def _rows(values: Sequence[float | None], width: int, height: int, ascii_only: bool) -> list[str]:
    marks = _PLAIN if ascii_only else _BLOCKS
    columns = _columns(values, width)
    numbers = [value for value in columns if value is not None and math.isfinite(value)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    steps = height * (len(marks) - 1)
    filled = [_filled(value, low, high, steps) for value in columns]
    rows = []
    for row in reversed(range(height)):
        line = ""
        for value, level in zip(columns, filled, strict=True):
            if value is None:
                line += " "
            elif not math.isfinite(value):
                line += "!" if row == 0 else " "
            else:
                line += marks[min(len(marks) - 1, max(0, level - row * (len(marks) - 1)))]
        rows.append(line.rstrip())
    return rows


def _filled(value: float | None, low: float, high: float, steps: int) -> int:
    """How many of all steps a value fills: at least one, so that the least one is seen, too."""
    if value is None or not math.isfinite(value):
        return 0
    half = value / 2 - low / 2  # the whole difference may be too large for a number
    return 1 + round((steps - 1) * (half / (high / 2 - low / 2))) if high > low else max(1, steps // 2)


def _columns(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most so many values: the mean of neighbours; one that is not finite is kept."""
    if len(values) <= width:
        return list(values)
    found: list[float | None] = []
    for i in range(width):
        group = [
            v for v in values[i * len(values) // width : (i + 1) * len(values) // width] if v is not None
        ]
        odd = next((v for v in group if not math.isfinite(v)), None)
        found.append(odd if odd is not None else _mean(group) if group else None)
    return found


def _mean(values: Sequence[float]) -> float:
    """The mean of finite numbers, also of large ones; rounding never leads beyond the extremes."""
    mean = sum(value / len(values) for value in values)
    return min(max(mean, min(values)), max(values))
