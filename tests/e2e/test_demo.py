"""`make demo`: that it does what it promises, and that it would say so if it did not."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_elastic.testing.airflow_rest import poll
from demo.page import Shown
from demo.place import Place
from demo.verify import Evidence, checks
from tests.support.machine.patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).parents[2]


def start(folder: Path, *words: str, keep: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--folder", str(folder), *words],
        cwd=CHECKOUT,
        env={**os.environ, "KEEP": keep},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Tests that a shell runs in its background ignore Ctrl-C, and so would what they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.siblings("example DAGs")
@pytest.mark.airflow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("keep", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_the_demo_does_what_it_promises(keep: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "a demo")
    demo = start(place.folder, keep=keep)
    try:
        said, _ = demo.communicate(timeout=1500)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
            said, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        up, left = _is_up(said), place.living()
        stopping = start(place.folder, "stop").communicate(timeout=PATIENCE_SECONDS)[0]
    assert demo.returncode == 0, said
    assert up is bool(keep)
    assert bool(left) is bool(keep)
    assert ("had left running" in stopping) is bool(keep)
    assert place.living() == []
    assert not _is_up(said)
    for wanted in (
        r"Airflow is ready .*http://127\.0\.0\.1:\d+",
        r"world size 2 · step \d+/690 · loss .* samples/s · attempt 1",
        r"\$ kill -9 \d+",
        r"node-1 was lost .*: attempt 1 ends at step \d+",
        r"attempt 2 begins in place: 2 workers, node-2 in place of node-1, from step [1-9]\d* or later",
        r"\$ airflow-elastic scale '.*/a demo/.*' 3",
        r"world size 3 · step \d+/690",
        r"run ended: succeeded",
        r"1 +2 +0 → \d+ .* worker lost: node-1",
        r"2 +2, then 3 +\d+ → 690 .* training is complete",
        r"samples +43110 seen, 43110 expected",
        r"accuracy 0\.9\d+ on held-out digits",
        r"promoted +model 1, the first one",
        r"goodput +\d+ % of",
        r"repeated +[0-9.]+ s",
        r"the tab Training was opened",
        r"its charts mark the scale step",
        r"its charts show 2 attempts",
        r"its charts show world sizes from [02] to 3",  # 0: a report from between the two attempts
        r"everything happened, in \d+ s",
    ):
        assert re.search(wanted, said), f"{wanted}\n{said}"
    assert "✗" not in said


def _is_up(said: str) -> bool:
    """Whether the Airflow that the demo tells of answers."""
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    try:
        return (
            found is not None and httpx.get(f"{found[0]}/api/v2/monitor/health", trust_env=False).is_success
        )
    except httpx.HTTPError:
        return False


@pytest.mark.airflow
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    place = Place(tmp_path / "a demo")
    demo = start(place.folder)
    try:
        poll("Airflow to start", lambda: len(place.living()) > 3 or None, timeout=PATIENCE_SECONDS)
        second = start(place.folder)
        assert "another demo runs" in second.communicate(timeout=PATIENCE_SECONDS)[0]
        assert second.returncode == 1
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        demo.kill()
        left = place.living()
        place.end_all()
    assert demo.returncode == 130, said
    assert "interrupted; nothing is left running" in said
    assert left == []


# -- what does not happen is noticed ---------------------------------------------------------------------------------


SHOWN = Shown(
    "Chromium",
    marks=["node-1 was lost: attempt 1 ends at step 195", "asked for 3 workers"],
    attempts=["Attempt 1: node-1 was lost", "Attempt 2: succeeded"],
    sizes=(2, 3),
)


def stretch(world_size: int, from_step: int, to_step: int) -> dict[str, Any]:
    return {"world_size": world_size, "from_step": from_step, "to_step": to_step}


def evidence(folder: Path) -> dict[str, Any]:
    """What a demo finds when all goes well."""
    weights = folder / "model.pt"
    weights.write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    reason = "node-1 was lost (its agent, process 4711, was killed)"
    first = {
        "number": 1,
        "cause": "failure",
        "failure": {"kind": "worker lost", "reason": reason},
        "from_step": 0,
        "last_step": 195,
        "stretches": [stretch(2, 0, 195)],
    }
    second = {
        "number": 2,
        "cause": "succeeded",
        "failure": None,
        "from_step": 180,
        "last_step": 690,
        "stretches": [stretch(2, 180, 400), stretch(3, 400, 690)],
    }
    return {
        "status": {
            "state": "succeeded",
            "step": 690,
            "samples": {"seen": 43110},
            "attempts": [first, second],
        },
        "tasks": dict.fromkeys(("prepare", "train", "evaluate", "promote"), "success"),
        "tries": 1,
        "log": "attempt 2 begins in place: 2 workers, from step 180 or later\n[rank 0] epoch 8: accuracy 0.9",
        "page": SHOWN,
        "killed": 4711,
        "scale_code": 0,
        "expected_samples": 43110,
        "evaluation": {"metrics": {"accuracy": 0.98}},
        "promotion": {"number": 1, "file": str(weights), "weights": {"sha256": sha256}, "step": 690},
        "asset_events": [{"extra": {"number": 1}}],
        "training_left": [],
        "airflow_left": [],
    }


def failing(found: dict[str, Any]) -> list[str]:
    return [check.text for check in checks(Evidence(**found)) if not check.ok]


def test_a_demo_that_went_well_passes(tmp_path: Path) -> None:
    assert failing(evidence(tmp_path)) == []
    assert failing({**evidence(tmp_path), "airflow_left": None}) == [], "with KEEP=1"


def test_a_demo_without_its_faults_fails(tmp_path: Path) -> None:
    """All went well, but nothing was killed, and nobody asked for a worker: that shows nothing."""
    calm = evidence(tmp_path)
    only = {**calm["status"]["attempts"][1], "number": 1, "from_step": 0, "stretches": [stretch(2, 0, 690)]}
    calm["status"]["attempts"] = [only]
    calm |= {"killed": None, "scale_code": None, "log": "[rank 0] epoch 8: accuracy 0.9"}
    calm["page"] = Shown("Chromium", attempts=["Attempt 1: succeeded"], sizes=(2, 2))
    assert failing(calm) == [
        "the log of train has no event of a second attempt, and rank 0's lines",
        "its charts do not mark that a worker was lost",
        "its charts do not mark the scale step",
        "its charts show 1 attempt",
        "its charts show world sizes from 2 to 2",
        "worker 1 was killed from outside (process None)",
        "attempt 1 ended because of that: succeeded",
        "there was no second attempt",
        "`airflow-elastic scale` ended with None",
        "0 steps were done with world size 3",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": None}, "there was no training"),
        ({"tasks": {}}, "tasks: "),
        ({"tasks": {"prepare": "success", "train": "failed"}}, "train failed"),
        ({"tasks": {"prepare": "success", "promote": "skipped"}}, "promote skipped"),
        ({"tries": 2}, "Airflow needed 2 tries"),
        ({"log": "attempt 2 begins in place"}, "not rank 0's lines"),
        ({"page": Shown("Chromium", trouble="it is blank")}, "cannot be seen: it is blank"),
        ({"page": replace(SHOWN, marks=["asked for 3 workers"])}, "do not mark that a worker was lost"),
        ({"page": replace(SHOWN, marks=["node-1 was lost"])}, "do not mark the scale step"),
        ({"page": replace(SHOWN, attempts=["Attempt 1: live"])}, "show 1 attempt"),
        ({"page": replace(SHOWN, sizes=None)}, "show no world size"),
        ({"killed": 4712}, "attempt 1 ended because of that: node-1 was lost (its agent, process 4711"),
        ({"scale_code": 2}, "ended with 2"),
        ({"expected_samples": 43111}, "43110 seen, 43111 expected"),
        ({"expected_samples": None}, "None expected"),
        ({"evaluation": {"metrics": {"accuracy": 0.1}}}, "accuracy 0.1000"),
        ({"evaluation": None}, "accuracy 0.0000"),
        ({"promotion": None}, "no model is promoted"),
        ({"asset_events": []}, "Airflow has 0 events"),
        ({"asset_events": [{"extra": {}}]}, "Airflow has 1 event"),
        ({"training_left": [4713]}, "of the training these processes still live: 4713"),
        ({"airflow_left": [4714]}, "of Airflow these processes still live: 4714"),
    ],
)
def test_each_thing_that_is_missing_is_noticed(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = failing({**evidence(tmp_path), **change})
    assert any(said in text for text in found), found


def test_a_restart_from_the_beginning_is_noticed(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    found["status"]["attempts"][1]["from_step"] = 0
    assert failing(found) == ["attempt 2 began at the checkpoint of step 0; 195 steps were done again"]


def test_a_promoted_file_that_is_not_what_was_measured_is_noticed(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    Path(found["promotion"]["file"]).write_bytes(b"others")
    assert failing(found) == ["no model is promoted, or its file is not what was measured"]
