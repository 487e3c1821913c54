"""What an agent's log says of its ranks' processes."""

from __future__ import annotations

import pytest

from airflow_elastic.runtime.agent.rank_group import begun


@pytest.mark.parametrize(
    ("ranks", "forked", "stayed", "words"),
    [
        ([0], {}, set(), "rank 0 started, in a new process"),
        ([1], {1: 2.0}, set(), "rank 1 started, by a fork"),
        ([0], {}, {0}, "rank 0 stayed in its process"),
        ([2, 3], {2: 2.0, 3: 2.0}, set(), "ranks 2, 3 started, 2 of them by forks"),
        ([2, 3], {3: 2.0}, {2}, "rank 2 stayed in its process; rank 3 started, by a fork"),
        (
            [0, 1, 2, 3],
            {3: 2.0},
            {0, 1},
            "ranks 0, 1 stayed in their processes; ranks 2, 3 started, 1 of them by forks",
        ),
    ],
)
def test_which_ranks_stayed_is_told(
    ranks: list[int], forked: dict[int, float], stayed: set[int], words: str
) -> None:
    assert begun(ranks, forked, stayed) == words
