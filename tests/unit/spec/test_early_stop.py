"""Early stopping, by any reports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.training.early_stop import EarlyStop, Watch, retention

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("val_loss 5", EarlyStop("val_loss", 5)),
        ("min val_loss 5", EarlyStop("val_loss", 5)),
        ("max accuracy 3", EarlyStop("accuracy", 3, higher=True)),
        ("max val/acc 12 by 0.001", EarlyStop("val/acc", 12, higher=True, by=0.001)),
        ("val_loss 5 by 1e-3", EarlyStop("val_loss", 5, by=0.001)),
    ],
)
def test_what_it_says(text: str, rule: EarlyStop) -> None:
    assert EarlyStop.parse(text) == rule
    assert RunSpec(("train.py",), early_stop=text).early_stop == text


@pytest.mark.parametrize(
    "text", ["a", "a 0", "5", "val loss 5", "most a 5", "a 5 by", "a 5 by x", "a  5", ""]
)
def test_what_it_cannot_say(text: str) -> None:
    with pytest.raises(SpecError, match=r"early_stop: given .*a metric and a number of reports"):
        RunSpec.from_dict({"command": ["train.py"], "early_stop": text})


@given(VALUES, st.integers(1, 5), st.booleans(), st.floats(0, 10))
def test_it_ends_after_as_many_reports_without_a_better_one(
    values: list[float], patience: int, higher: bool, by: float
) -> None:
    rule, watch = EarlyStop("m", patience, higher, by), Watch("m")
    best: float | None = None
    at, since = None, 0
    for step, value in enumerate(values):
        watch = rule.after(
            decode(Watch, encode(watch)), value, step
        )  # it survives a checkpoint at any report
        better = math.isfinite(value) and (
            best is None or ((value - best if higher else best - value) > 0 and abs(value - best) >= by)
        )
        best, at, since = (value, step, 0) if better else (best, at, since + 1)
        assert (watch.best, watch.step, watch.since, watch.over) == (best, at, since, since >= patience)


def test_the_best_checkpoint_is_kept() -> None:
    assert retention(CheckpointPolicy(), None).keep_best is None
    assert retention(CheckpointPolicy(), "max accuracy 3").keep_best == "max accuracy"
    own = CheckpointPolicy(keep_best="min loss")
    assert retention(own, "max accuracy 3") == own
