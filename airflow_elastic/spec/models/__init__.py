"""A model URI: where promoted models are kept, and what is recorded about each of them. Plain data, without I/O.

- `layout`: the key of every object. `promotion`: the record of a promotion. `start`: what a new
  run begins with.
"""

from __future__ import annotations

from airflow_elastic.spec.models.promotion import Compared, Lineage, Promotion, Weights

__all__ = ["Compared", "Lineage", "Promotion", "Weights"]
