"""Which state goes on, of those on workers' disks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.offers import Offer, choose

OFFERS = st.lists(
    st.builds(
        lambda by, state, part: Offer(by, state[0], state[1], state[2], part % state[3], state[3]),
        st.integers(0, 4),
        st.sampled_from(
            [(10, "a1", "disk", 2), (20, "a1", "disk", 2), (20, "a1", "steps", 2), (20, "a2", "disk", 3)]
        ),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(OFFERS, st.sampled_from([-1, 10, 20]))
def test_what_is_chosen_is_whole_and_newer_than_storage_and_nothing_newer_is(
    found: list[Offer], newest: int
) -> None:
    chosen = choose(found, newest)
    whole = {
        (one.step, one.data, one.reason)
        for one in found
        if {
            o.part
            for o in found
            if (o.step, o.data, o.reason, o.of) == (one.step, one.data, one.reason, one.of)
        }
        == set(range(one.of))
    }
    better = [state for state in whole if state[0] > newest]
    if not chosen:
        assert not better
        return
    assert set(chosen) <= set(found)
    assert [one.part for one in chosen] == list(range(chosen[0].of))
    assert len({(one.step, one.data, one.reason, one.of) for one in chosen}) == 1
    assert chosen[0].step == max(better)[0] > newest
    assert choose(reversed(found), newest) == chosen, "who says so first makes a difference"


def test_workers_that_share_a_disk_share_the_work() -> None:
    """Four workers were there, and two machines have two each of their parts; one worker has come in place of each."""
    found = [
        Offer(by, 7, "a1", "disk", part, 4) for by, parts in ((0, (0, 1)), (1, (2, 3))) for part in parts
    ]
    found += [Offer(2, 7, "a1", "disk", part, 4) for part in (2, 3)]
    assert Counter(one.by for one in choose(found, -1)) == {0: 2, 1: 1, 2: 1}
