"""What sensors wait for, judged by looks at runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_elastic.core.conditions import (
    AtSize,
    Condition,
    HasCheckpoint,
    Look,
    OutOfReach,
    Reached,
    Unhealthy,
    from_plain,
    to_plain,
)
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import Progress, RankReport, Stretch
from tests.support.builders import LIVE, story

ENDED = ev.RunEnded(90.0, "failed", "no luck")


def manifest(step: int, at: float, **metrics: float) -> Manifest:
    return Manifest(step, 1, 1, 2, at, f"checkpoints/data/{step}", (), metrics=metrics)


def look(
    *events: ev.Event,
    at: float = 100.0,
    progress: Progress | None = None,
    slow: tuple[int, ...] = (),
    **more: Any,
) -> Look:
    """A look as it is read from storage: plain JSON."""
    told = document("/run", story(*events), progress, at, slow=slow)
    return Look(json.loads(json.dumps(told)), at, **more)


def told(step: int, at: float, *, workers: int = 2, **more: Any) -> Progress:
    ranks = tuple(RankReport(rank, f"node-{rank}", step, at=at) for rank in range(workers))
    stretch = Stretch(
        1, workers, workers, started_at=2.0, first_step_at=3.0, last_step_at=at, from_step=0, to_step=step
    )
    return Progress(
        1, at, world_size=workers, step=step, ranks=ranks, stretches=(stretch,), attached=True, **more
    )


@pytest.mark.parametrize(
    "condition",
    [
        Reached(step=3),
        Reached(state="ended"),
        Reached(checkpoint=True),
        HasCheckpoint(metric="val_loss < 0.2", max_age=3.0),
        AtSize(3),
        Unhealthy(straggler=True, unsaved=60.0),
    ],
)
def test_conditions_survive_as_json(condition: Condition) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(condition)))) == condition


def test_a_condition_of_another_kind_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"kind: given 'mood'; allowed: one of reached, checkpoint, at_size, unhealthy"
    ):
        from_plain({"kind": "mood"})


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_the_newest_checkpoint_that_fits_counts() -> None:
    three = (manifest(10, 50.0, loss=0.3), manifest(20, 60.0, loss=0.1), manifest(30, 70.0, loss=0.2))
    seen = look(*LIVE, checkpoints=three)

    def found(**wanted: Any) -> int | None:
        answer = HasCheckpoint(**wanted).judge(seen)
        return None if answer is None else int(answer["checkpoint"])

    assert found() == 30
    assert found(step=20) == 30
    assert found(step=31) is None
    assert found(metric="loss < 0.15") == 20
    assert found(metric="loss < 0.15", step=21) is None
    assert found(metric="accuracy > 0") is None
    assert found(max_age=30.0) == 30
    assert found(max_age=29.0) is None
    assert HasCheckpoint(metric="loss<0.15").judge(seen) == {
        "run_uri": "/run",
        "state": "running",
        "step": 0,
        "checkpoint": 20,
        "manifest": f"/run/{layout.manifest(20)}",
        "data": "/run/checkpoints/data/20",
        "metrics": {"loss": 0.1},
        "at": 60.0,
    }


def test_after_the_end_only_what_is_there_counts() -> None:
    seen = look(*LIVE, ENDED, checkpoints=(manifest(10, 50.0),))
    assert HasCheckpoint(step=10).judge(seen)
    with pytest.raises(
        OutOfReach, match=r"/run has failed at step 0 \(no luck\): it does not reach a checkpoint of"
    ):
        HasCheckpoint(step=11).judge(seen)


# -- workers -----------------------------------------------------------------------------------------------------------


def test_workers_count_once_they_have_done_a_step_together() -> None:
    asked = (*LIVE, ev.ScaleRequested(5.0, "r", 3, "ada"))
    assert AtSize(3).judge(look(*asked, progress=told(5, 5.0))) is None
    scaled = (*asked, ev.Scaled(6.0, 1, 3))
    assert AtSize(3).judge(look(*scaled, progress=told(5, 5.0))) is None
    three = told(6, 7.0, workers=3)
    starting = replace(three, stretches=(replace(three.stretches[0], first_step_at=None),))
    assert AtSize(3).judge(look(*scaled, progress=starting)) is None
    reached = AtSize(3).judge(look(*scaled, progress=three))
    assert reached is not None
    assert reached["workers"] == 3


def test_who_asks_for_another_number_ends_the_wait() -> None:
    asked = (*LIVE, ev.ScaleRequested(5.0, "r", 3, "ada"))
    other = (*asked, ev.ScaleRequested(6.0, "s", 4, "bob"))
    with pytest.raises(OutOfReach, match="somebody has asked for 4 workers instead of 3"):
        AtSize(3).judge(look(*other), look(*asked))
    with pytest.raises(OutOfReach, match="does not reach 3 workers any more"):
        AtSize(3).judge(look(*asked, ENDED))


# -- health ------------------------------------------------------------------------------------------------------------


def alarms(condition: Unhealthy, seen: Look, before: Look | None) -> set[str]:
    found = condition.judge(seen, before)
    return set() if found is None else {one["alarm"] for one in found["alarms"]}


SICK = {
    "no_progress": ({"no_progress": 60.0}, {"no_progress": 200.0}),
    "unsaved": ({"unsaved": 80.0}, {"unsaved": 200.0}),
    "goodput": ({"goodput_below": 0.9, "after": 10.0}, {"goodput_below": 0.001, "after": 10.0}),
    "throughput": ({"throughput_below": 0.6, "after": 10.0}, {"throughput_below": 0.4, "after": 10.0}),
}


@pytest.mark.parametrize("name", SICK)
def test_each_sign_has_its_limit_and_must_last_for_two_looks(name: str) -> None:
    report = told(5, 30.0, samples_per_second=50.0)
    report = replace(report, stretches=(replace(report.stretches[0], stepping_seconds=10.0),))
    seen = look(*LIVE, progress=report, usual_per_second=100.0)
    beyond, within = (Unhealthy(**limits) for limits in SICK[name])
    assert alarms(beyond, seen, seen) == {name}
    assert alarms(beyond, seen, None) == set()
    assert alarms(within, seen, seen) == set()


def test_a_rank_that_is_slow_in_two_looks_is_a_straggler() -> None:
    report = told(5, 99.0, workers=3)
    healthy, sick = look(*LIVE, progress=report), look(*LIVE, progress=report, slow=(1,))
    condition = Unhealthy(straggler=True)
    assert [alarms(condition, sick, healthy), alarms(condition, healthy, sick)] == [set(), set()]
    assert alarms(condition, sick, sick) == {"straggler"}


def test_a_run_that_waits_before_its_first_submission_is_not_still() -> None:
    seen = look(at=10_000.0)
    assert alarms(Unhealthy(no_progress=1.0, unsaved=1.0, goodput_below=1.0), seen, seen) == set()


def test_an_ended_run_alarms_no_more() -> None:
    seen = look(*LIVE, ENDED)
    with pytest.raises(OutOfReach):
        Unhealthy(no_progress=1.0).judge(seen, seen)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "one or more of straggler, no_progress, restarts"),
        ({"goodput_below": 1.5}, "a share, above 0 and at most 1"),
        ({"restarts": 0}, "an integer, at least 1"),
        ({"straggler": False}, "True, or left out"),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Unhealthy(**limits)
