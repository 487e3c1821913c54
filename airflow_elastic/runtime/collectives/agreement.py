"""Ranks find out together, now and then, whether one of them was asked for something: docs/adr/0006-agreement.md."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from airflow_elastic.runtime.collectives.process_group import Collectives

#: Ranks agree this often on whether to save or to stop. In between a step costs no communication of ours.
AGREE_SECONDS = 0.5


class Agreement:
    """The questions of one rank; the same on all of them, asked at the same steps.

    Args:
        ranks: this rank among the others.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks = ranks
        self._ask_at, self._asked_at, self._stride = 1.0, time.monotonic(), 1
        self._answer: Callable[[], list[float]] | None = None

    def due(self, step: int) -> bool:
        """Whether to ask at this step."""
        return step >= self._ask_at

    def ask(self, *words: float, soon: bool = True) -> bool:
        """Begin to find out the largest of each word that any rank has.

        The answer is waited for with the next step, when it is there already: ranks that wait for each other once more
        in a step would lose by how far they are apart.

        Args:
            words: this rank's.
            soon: whether steps may be so long that each of them asks, and the answer is to be waited for now.

        Returns:
            Whether it is.
        """
        self._ask_at = math.inf
        self._answer = self._ranks.largest(*words, time.monotonic() - self._asked_at)
        return soon and self._stride == 1

    def answer(self) -> list[float] | None:
        """What was asked for; None where nothing was, or it was answered."""
        if self._answer is None:
            return None
        *words, elapsed = self._answer()
        self._answer = None
        # Everybody knows the same elapsed time, so everybody asks again at the same step.
        wanted = int(self._stride * AGREE_SECONDS / max(elapsed, 1e-6))
        self._stride = max(1, min(2 * self._stride, wanted))
        return words

    def again(self, step: int) -> None:
        """What was asked for at this step is done: ask again, a stride from here."""
        self._ask_at, self._asked_at = step + self._stride, time.monotonic()
