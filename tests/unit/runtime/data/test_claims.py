"""Pieces of a global batch are handed out once each, however far apart ranks are."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.claims import Claims


class Rank:
    """One that goes from batch to batch at its own speed, as where the exchange of gradients keeps nobody waiting."""

    def __init__(self, number: int, world: int, pieces: list[int], store: HashStore) -> None:
        self._claims = Claims(Collectives(number, world, None))
        self._claims._store = store
        self._pieces, self._batch, self._number = pieces, 0, self._claims.begin(pieces[0])
        self.done: list[tuple[int, int]] = []

    @property
    def over(self) -> bool:
        return self._batch == len(self._pieces)

    def go_on(self) -> None:
        """With the piece at hand."""
        if self._number < self._pieces[self._batch]:
            self.done.append((self._batch, self._number))
        self._number = self._claims.take()
        if self._number >= self._pieces[self._batch]:
            self._batch += 1
            if not self.over:
                self._number = self._claims.begin(self._pieces[self._batch])


@given(
    st.integers(2, 4), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.randoms(use_true_random=False)
)
def test_each_piece_is_done_once_and_nothing_is_left_behind(
    world: int, pieces: list[int], luck: Random
) -> None:
    store = HashStore()
    ranks = [Rank(number, world, pieces, store) for number in range(world)]
    while going := [rank for rank in ranks if not rank.over]:
        luck.choice(going).go_on()
    done = Counter(piece for rank in ranks for piece in rank.done)
    assert done == Counter(
        {(batch, piece): 1 for batch, count in enumerate(pieces) for piece in range(count)}
    )
    assert store.num_keys() == 0


def test_a_rank_that_is_alone_gets_all_of_them() -> None:
    alone = Claims(Collectives(0, 1, None))
    assert [alone.begin(3), alone.take(), alone.take(), alone.take()] == [0, 1, 2, 3]
    assert alone.begin(1) == 0
