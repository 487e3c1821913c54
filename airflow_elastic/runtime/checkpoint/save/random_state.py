"""The random number generators of one process: saved and put back, or begun anew for one sample."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states of Python's, torch's, CUDA's and (where it is in use) numpy's generators."""
    state = _on_cpu()
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Undo everything that was drawn since `capture`."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def seed(*which: int) -> None:
    """Have Python's, torch's and numpy's generators draw what depends on these numbers alone. CUDA's are left alone.

    For each sample, so it has to be quick (10 µs): `torch.manual_seed` sees to CUDA, too, and takes more than ten times
    as long; a sequence as numpy's seed takes five times as long as a number.
    """
    drawn = blake2b(repr(which).encode(), digest_size=24).digest()
    random.seed(int.from_bytes(drawn[:12], "little"))
    torch.default_generator.manual_seed(int.from_bytes(drawn[12:20], "little"))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(drawn[20:], "little"))


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever is drawn within, on processors, the generators draw after that what they would have drawn without it."""
    state = _on_cpu()
    try:
        yield
    finally:
        restore(state)


def _on_cpu() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state
