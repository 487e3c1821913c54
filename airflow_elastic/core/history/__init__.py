"""The history of a run: how series age, how stored parts become one, and what is chosen from them for a chart.

Comes in: numbers with their times, or stored parts. Goes out: parts of bounded size, and plain JSON values. It knows
nothing of where a history is stored.
"""

from airflow_elastic.core.history.charts import (
    FORWARD_TIMES,
    STEP_TIMES,
    choose,
    conditions,
    heatmap,
    matching,
    matrix,
    newest,
    select,
)

__all__ = [
    "FORWARD_TIMES",
    "STEP_TIMES",
    "choose",
    "conditions",
    "heatmap",
    "matching",
    "matrix",
    "newest",
    "select",
]
