"""The history of a run: series over time, and the form in which they are stored below the run URI.

A series is kept in buckets of time. Each bucket has the number of its values, their minimum, maximum and mean. All
series of a table share the starts of the buckets. A matrix has one value for each worker or rank, and keeps mean and
maximum. Columns are arrays of machine numbers, so NaN and infinite values are stored as they are.
"""

from airflow_elastic.spec.history.form import HISTORY_VERSION, decode_part, encode_part
from airflow_elastic.spec.history.types import (
    Column,
    Condition,
    History,
    HistoryUnreadable,
    Matrix,
    Part,
    Table,
)

__all__ = [
    "HISTORY_VERSION",
    "Column",
    "Condition",
    "History",
    "HistoryUnreadable",
    "Matrix",
    "Part",
    "Table",
    "decode_part",
    "encode_part",
]
