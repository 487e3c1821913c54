"""Which state goes on, of those on workers' disks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.checkpoints.recovery_choice import PartOnDisk, StateVersion, choose

NOW = StateVersion(3, 1)
STATES = [
    (StateVersion(1, 1, 10), "disk", 2),
    (StateVersion(1, 1, 20), "disk", 2),
    (StateVersion(1, 1, 20), "steps", 2),
    (StateVersion(1, 2, 20), "disk", 3),
    (StateVersion(2, 1, 15), "disk", 2),
    (StateVersion(3, 1, 99), "disk", 1),  # of another run: this generation has not begun
]
OFFERS = st.lists(
    st.builds(
        lambda by, state, part: PartOnDisk(by, state[0], state[1], part % state[2], state[2]),
        st.integers(0, 4),
        st.sampled_from(STATES),
        st.integers(0, 5),
    ),
    max_size=40,
)
STORED = st.sampled_from(
    [
        StateVersion(),
        StateVersion(1, 1, 5),
        StateVersion(1, 1, 10),
        StateVersion(1, 2, 10),
        StateVersion(2, 1, 14),
        StateVersion(2, 1, 20),
    ]
)


@given(OFFERS, STORED)
def test_what_is_chosen_is_whole_and_goes_on_from_storage_and_is_the_newest_of_these(
    found: list[PartOnDisk], stored: StateVersion
) -> None:
    def is_whole(age: StateVersion, reason: str, of: int) -> bool:
        parts = {one.part for one in found if (one.age, one.reason, one.of) == (age, reason, of)}
        return parts == set(range(of))

    good = [
        age
        for age, reason, of in STATES
        if is_whole(age, reason, of)
        and age.step > stored.step
        and (age.attempt, age.generation) >= (stored.attempt, stored.generation)
        and age.attempt < 3
    ]
    chosen = choose(found, stored, NOW)
    if not good:
        assert chosen == ()
        return
    assert set(chosen) <= set(found)
    assert [one.part for one in chosen] == list(range(chosen[0].of))
    assert len({(one.age, one.reason, one.of) for one in chosen}) == 1
    assert chosen[0].age == max(good)
    assert choose(reversed(found), stored, NOW) == chosen, "who says so first makes a difference"


def test_workers_that_share_a_disk_share_the_work() -> None:
    """Four workers were there, and two machines have two each of their parts; on one of them are two workers now."""
    age = StateVersion(1, 1, 7)
    found = [
        PartOnDisk(by, age, "disk", part, 4) for by, parts in ((0, (0, 1)), (1, (2, 3))) for part in parts
    ]
    found += [PartOnDisk(2, age, "disk", part, 4) for part in (2, 3)]
    assert Counter(one.by for one in choose(found, StateVersion(), NOW)) == {0: 2, 1: 1, 2: 1}


def test_a_part_that_cannot_be_counts_for_nothing() -> None:
    assert (
        choose(
            [
                PartOnDisk(0, StateVersion(1, 1, 7), "disk", 5, 1),
                PartOnDisk(0, StateVersion(1, 1, 7), "disk", -1, 1),
            ],
            StateVersion(),
            NOW,
        )
        == ()
    )
