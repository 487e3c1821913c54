"""Who has gone on from a checkpoint, and which states the workers' disks have."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.checkpoints.users import SavedBy, on_disks, users, whole_on_disks
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoints.readings import Reading
from airflow_elastic.spec.status import Progress, StateOnDisk, Stretch, WorkerUsage
from tests.support.builders import LIVE, lost, story


def from_step(attempt: int, *steps: int, workers: int = 2) -> Progress:
    """The report of an attempt whose generations went on from these steps."""
    stretches = [
        Stretch(number, workers, workers, 1.0, from_step=step) for number, step in enumerate(steps, 1)
    ]
    return Progress(attempt, 2.0, stretches=tuple(stretches))


def saved(step: int, attempt: int = 1, generation: int = 1) -> SavedBy:
    return SavedBy(step, attempt, generation, f"checkpoints/data/{step}-a{attempt}-g{generation}/")


TWO_ATTEMPTS = story(
    *LIVE,
    ev.WorkersEnded(2.0, 1, lost(), from_step(1, 0, 10)),
    ev.AttemptGone(3.0, 1, from_step(1, 0, 10)),
    ev.AttemptSubmitted(4.0, 2, "job-a2"),
)


def test_the_attempts_and_groups_of_workers_that_went_on_from_it() -> None:
    now = from_step(2, 10, 20, 20, workers=3)
    assert users(saved(10), TWO_ATTEMPTS, now) == ["attempt 1 with 2 workers", "attempt 2"]
    assert users(saved(20, 2), TWO_ATTEMPTS, now) == ["attempt 2 with 3 workers"]
    assert users(saved(30), TWO_ATTEMPTS, now) == []
    assert users(saved(10), TWO_ATTEMPTS, None) == ["attempt 1 with 2 workers"]


def test_who_began_before_it_was_saved_again_has_not_used_it() -> None:
    again = saved(10, attempt=2, generation=1)
    assert users(again, TWO_ATTEMPTS, from_step(2, 10)) == []
    assert users(again, TWO_ATTEMPTS, from_step(2, 0, 10)) == ["attempt 2 with 2 workers"]


def test_to_begin_is_no_use_of_a_checkpoint_of_step_0() -> None:
    first = saved(0)
    assert users(first, TWO_ATTEMPTS, from_step(2, 0)) == []
    read = from_step(2, 0)
    read = replace(read, stretches=(replace(read.stretches[0], restored_bytes=5),))
    assert users(first, TWO_ATTEMPTS, read) == ["attempt 2"]


def test_others_are_named_once_and_only_for_these_files() -> None:
    this = saved(10)
    others = [
        Reading("run /b", 1.0, this.data),
        Reading("run /b", 2.0, this.data),
        Reading("run /c", 3.0, saved(10, 7).data),
    ]
    assert users(this, TWO_ATTEMPTS, from_step(2, 10), others) == [
        "attempt 1 with 2 workers",
        "attempt 2",
        "run /b",
    ]


def usage(*held: StateOnDisk, name: str = "node-0") -> WorkerUsage:
    return WorkerUsage(name, 1.0, on_disk=held)


@given(
    st.lists(
        st.lists(
            st.builds(StateOnDisk, st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 4)), max_size=6
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_state_is_on_disks_when_every_part_is_on_one(disks: list[list[StateOnDisk]]) -> None:
    told = whole_on_disks([usage(*held) for held in disks])
    everything = {one for held in disks for one in held}
    expected = {
        one.data
        for one in everything
        if all(StateOnDisk(one.data, part, one.of) in everything for part in range(one.of))
    }
    assert told == tuple(sorted(expected))
    assert whole_on_disks([*(usage(*held) for held in disks), None]) is None


def test_what_no_worker_has_said_is_not_known() -> None:
    assert whole_on_disks([]) is None
    assert whole_on_disks([WorkerUsage("node-0", 1.0)]) is None
    assert whole_on_disks([usage()]) == ()


def test_the_last_word_counts_until_workers_say_something_else() -> None:
    before = replace(from_step(1, 0), on_disk=("a",))
    state = story(
        *LIVE,
        ev.WorkersEnded(2.0, 1, lost(), before),
        ev.AttemptGone(3.0, 1, before),
        ev.AttemptSubmitted(4.0, 2, "b"),
    )
    assert on_disks(state, None) == on_disks(state, from_step(2, 10)) == {"a"}
    assert on_disks(state, replace(from_step(2, 10), on_disk=("b",))) == {"b"}
    assert on_disks(state, replace(from_step(2, 10), on_disk=())) == frozenset()
    assert on_disks(replace(state, outcome="succeeded"), None) == frozenset()
