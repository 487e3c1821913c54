"""Check before the first step that a checkpoint fits the script's model and optimizers, and say what differs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.flatten import flattened
from airflow_elastic.runtime.checkpoint.format.tensor_split import Rest
from airflow_elastic.spec.errors import InvalidInput

_SHOWN = 5


#: Names that both sides must have. Settings of an optimizer may differ: a newer torch has more of them.
_EXACT = ("model.", "optimizer.state.")
_MAY_DIFFER = "optimizer.param_groups."

#: Advice when a run's checkpoint does not fit.
TO_TRAIN = (
    "Use the model and optimizers that were saved, in the same dtypes, or begin a run with another URI. A script may "
    "also change them while it trains, as with layers that thaw or grow, added groups, or pruning. Then give "
    "run.restore a function that repeats these changes: rebuild=fn, called with the facts of the checkpoint "
    "(docs/how-to/change-the-model.md)"
)
#: Advice when weights that are only read do not fit.
TO_READ = (
    "Load it into the model that was saved, in the same dtypes, as loading converts none. For another dtype, convert "
    "the model after it is loaded and before it is wrapped, e.g. with model.to(torch.bfloat16)"
)


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A shape and a dtype: a tensor can be filled with the bytes of another one of the same kind."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def kind_of(value: Any) -> TensorKind | None:
    """A tensor's kind; None for anything else."""
    return TensorKind(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def is_extra(name: str) -> bool:
    """Whether this name in a model's state dict is that of a module's extra state (`get_extra_state`)."""
    return name.rpartition(".")[2] == "_extra_state"


def with_room_for_extra(model: Mapping[str, Any], stored: Mapping[str, TensorKind | None]) -> dict[str, Any]:
    """Make the extra state of modules be of the kind that is stored, as its type and size may change.

    Args:
        model: its state dict, `packed`.
        stored: kinds by name, with `model.` before it; None for a value that is no tensor.
    """

    def room(name: str, own: Any) -> Any:
        if not is_extra(name) or isinstance(own, DTensor) or f"model.{name}" not in stored:
            return own
        kind = stored[f"model.{name}"]
        if kind is None:
            return Rest(None)
        device = own.device if torch.is_tensor(own) else None
        return own if kind_of(own) == kind else torch.empty(kind.shape, dtype=kind.dtype, device=device)

    return {name: room(name, own) for name, own in model.items()}


def check_fit(
    state: Mapping[str, Any], stored: Mapping[str, TensorKind | None], what: str, then: str
) -> None:
    """Refuse a checkpoint that does not fit this state.

    Without this check, torch would silently skip names that it does not know, and convert other dtypes.

    Args:
        state: nested; the checkpoint will fill it.
        stored: kinds by name, as the checkpoint has them; None for a value that is no tensor.
        what: the checkpoint, in words.
        then: how to go on, in words.

    Raises:
        InvalidInput: names what differs.
    """
    flat = flattened(state)
    flat = {name: value for name, value in flat.items() if not name.startswith(_MAY_DIFFER)}
    extra = {name for name in stored.keys() - flat.keys() if name.startswith(_EXACT)}
    differ = [f"the script has no {name}" for name in sorted(extra)]
    differ += [f"the checkpoint has no {name}" for name in sorted(flat.keys() - stored.keys())]
    for name in sorted(flat.keys() & stored.keys()):
        ours, theirs = kind_of(flat[name]), stored[name]
        if ours != theirs:
            here, there = _words(ours, theirs), _words(theirs, ours)
            differ.append(f"{name} is {here} in the script and {there} in the checkpoint")
    if differ:
        more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise InvalidInput(
            f"{what} is of another model or optimizer: {'; '.join(differ[:_SHOWN])}{more}. {then}"
        )


def check_groups(optimizer: Mapping[str, Any], groups: int, what: str, then: str) -> None:
    """Refuse a checkpoint with more or fewer groups of parameters: their settings would have no group to go to.

    Args:
        optimizer: the state of the script's optimizers.
        groups: the number of groups in the checkpoint.
        what: the checkpoint, in words.
        then: how to go on, in words.

    Raises:
        InvalidInput: names both numbers.
    """
    ours = len(optimizer.get("param_groups", []))
    if ours and ours != groups:
        raise InvalidInput(
            f"{what} is of another optimizer: the script's optimizers have {ours} groups of parameters, and those that "
            f"were saved have {groups}. {then}"
        )


def check_given(given: Container[str], stored: Mapping[str, TensorKind | None], what: str) -> None:
    """Refuse a checkpoint with named objects that `run.restore` does not get: the next one would lack them.

    Args:
        given: the names that the script gives, with those that it gives as None to drop them.
        stored: kinds by name, as the checkpoint has them.
        what: the checkpoint, in words.

    Raises:
        InvalidInput: names those that are missing.
    """
    rests = [name for name, kind in stored.items() if kind is None and name.startswith("other.")]
    names = sorted(name.removeprefix("other.").removesuffix(".rest") for name in rests)
    if missing := [name for name in names if name not in given]:
        raise InvalidInput(
            f"{what} has {', '.join(missing)}, which run.restore is not given: the next checkpoint would lack it. "
            f"Give it again, or drop it for good with run.restore(model, optimizer, {missing[0]}=None)"
        )


def _words(kind: TensorKind | None, other: TensorKind | None) -> str:
    """The dtype if the shapes are the same, or the shape."""
    if kind is None:
        return "no tensor"
    return str(kind.dtype) if other is not None and kind.shape == other.shape else str(kind.shape)
