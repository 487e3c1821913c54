"""Whether a checkpoint is of the model that is to be trained on: said before the first step, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from airflow_elastic.spec.errors import InvalidInput

_SHOWN = 5


#: Names that have to be the same on both sides. Settings of an optimizer may differ: a newer torch has more of them.
_EXACT = ("model.", "optimizer.state.")
_MAY_DIFFER = "optimizer.param_groups."


def check_fit(state: Mapping[str, Any], stored: Mapping[str, tuple[int, ...] | None], what: str) -> None:
    """Refuse a checkpoint that is not of this state: torch would leave out in silence what it does not know.

    Args:
        state: to be filled, nested.
        stored: shapes by name, as the checkpoint has them; None for what is no tensor.
        what: the checkpoint, in words.

    Raises:
        InvalidInput: names what differs.
    """
    flat, _ = flatten_state_dict(dict(state))
    flat = {name: value for name, value in flat.items() if not name.startswith(_MAY_DIFFER)}
    extra = {name for name in stored.keys() - flat.keys() if name.startswith(_EXACT)}
    differ = [f"the script has no {name}" for name in sorted(extra)]
    differ += [f"the checkpoint has no {name}" for name in sorted(flat.keys() - stored.keys())]
    for name in sorted(flat.keys() & stored.keys()):
        shape = getattr(flat[name], "shape", None)
        ours, theirs = tuple(shape) if shape is not None else None, stored[name]
        if ours != theirs:
            differ.append(f"{name} is {_words(ours)} in the script and {_words(theirs)} in the checkpoint")
    if differ:
        more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise InvalidInput(
            f"{what} is of another model or optimizer: {'; '.join(differ[:_SHOWN])}{more}. Go on with those that were "
            "saved, or begin a run with another URI"
        )


def _words(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else str(shape)
