"""Proofs by chance: a few rounds for each commit, many for the proof."""

from __future__ import annotations

import pytest

#: The longest takes almost an hour where nothing else uses the machine.
_LONG_SECONDS = 4 * 3600


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    """So many rounds, or as many as the proof asks for: the argument `faults`."""
    long = pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(_LONG_SECONDS)])
    return pytest.mark.parametrize("faults", [few, long])
