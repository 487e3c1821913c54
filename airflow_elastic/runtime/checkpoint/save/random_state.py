"""The random number generators of one process: save them, restore them, or seed them for one sample."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states of the generators of Python, torch, CUDA and, if it is imported, numpy."""
    state = _on_cpu()
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Set the generators back to their states at `capture`."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def seed(*which: int) -> None:
    """Seed the generators of Python, torch and numpy with these numbers. CUDA's keep their states.

    This is called for each sample, so it must be fast (10 µs). `torch.manual_seed` seeds CUDA, too, and takes more than
    ten times as long. For numpy, a sequence as seed takes five times as long as a number.
    """
    drawn = blake2b(repr(which).encode(), digest_size=24).digest()
    random.seed(int.from_bytes(drawn[:12], "little"))
    torch.default_generator.manual_seed(int.from_bytes(drawn[12:20], "little"))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(drawn[20:], "little"))


@contextmanager
def preserved() -> Iterator[None]:
    """A context that restores the CPU generators at its end, so that draws inside it have no effect on later ones."""
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
