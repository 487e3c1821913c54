"""The options of a DataLoader that a script may give to `run.loader`, and those that the run decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_elastic.spec.errors import InvalidInput

#: Options of a DataLoader that the run decides: their usual values, and why a script cannot set others.
_OURS = {
    "batch_size": (
        1,
        "A rank gets at most micro_batch samples at once, and a step has global_batch samples",
    ),
    "sampler": (None, "The order of samples follows from seed and shuffle"),
    "batch_sampler": (None, "The order of samples follows from seed and shuffle"),
    "drop_last": (False, "An epoch has all samples, and its last step has the remaining ones"),
}


def without_ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that the run decides. Raises InvalidInput if one of these has another value."""
    for name in sorted(_OURS.keys() & options.keys()):
        usual, why = _OURS[name]
        if options[name] is not usual and options[name] != usual:
            raise InvalidInput(f"run.loader: {name}: given {options[name]!r}; allowed: nothing. {why}")
    return {name: value for name, value in options.items() if name not in _OURS}
