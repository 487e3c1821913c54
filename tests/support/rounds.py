"""Proofs by chance: a few rounds for each commit, many for the proof."""

from __future__ import annotations

import pytest


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    """So many rounds, or as many as the proof asks for: the argument `faults`."""
    long = pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
    return pytest.mark.parametrize("faults", [few, long])
