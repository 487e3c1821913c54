"""Ranks agree, from time to time, whether one of them has a request to save or stop: docs/adr/0006-agreement.md."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from airflow_elastic.runtime.collectives.process_group import Collectives

#: Ranks agree this often whether to save or to stop. The steps in between need no communication for it.
AGREE_SECONDS = 0.5


class Agreement:
    """One rank's part in the agreements. All ranks ask the same at the same steps.

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
        """Begin to find, for each number, the largest one that a rank has.

        Ranks wait for the answer in the next step, when it is usually there. To wait within the same step would cost
        all ranks their current difference in time.

        Args:
            words: this rank's numbers.
            soon: if steps are so long that each of them asks, wait for the answer now.

        Returns:
            Whether to wait now.
        """
        self._ask_at = math.inf
        self._answer = self._ranks.largest(*words, time.monotonic() - self._asked_at)
        return soon and self._stride == 1

    def answer(self) -> list[float] | None:
        """The answer; None without an open question."""
        if self._answer is None:
            return None
        *words, elapsed = self._answer()
        self._answer = None
        # All ranks have the same elapsed time now, so all ask again at the same step.
        wanted = int(self._stride * AGREE_SECONDS / max(elapsed, 1e-6))
        self._stride = max(1, min(2 * self._stride, wanted))
        return words

    def again(self, step: int) -> None:
        """The requests of this step are done: ask again, a stride from here."""
        self._ask_at, self._asked_at = step + self._stride, time.monotonic()
