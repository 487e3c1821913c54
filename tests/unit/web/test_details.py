"""Workers, events, logs and checkpoints of a run, on the real server over runs in folders."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, reports
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.evaluation import Evaluation
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import RankReport
from airflow_elastic.views.logs import LONGEST_LINE, MOST_BYTES
from tests.support.builders import failed
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.watched import Browser, submitted, trained, write_run


def save(store: Store, step: int, *, attempt: int = 1, **changes: object) -> None:
    data = layout.checkpoint_data(step, attempt, 1)
    store.put(f"{data}a", b"12345")
    file = StoredFile(f"{data}a", 5, {})
    assert checkpoints.commit(store, Manifest(step, attempt, 1, 2, time.time(), data, (file,), **changes))  # type: ignore[arg-type]


# -- workers -------------------------------------------------------------------------------------------------------


def test_workers_are_grouped_by_units_and_compared(tmp_path: Path) -> None:
    now = time.time()
    ranks = tuple(
        RankReport(number, f"node-{number // 2}", 40, now, 0.1, forward_seconds=0.09 if number == 5 else 0.01)
        for number in range(6)
    )
    size = Workers(4, min=2, max=4, node_unit=2, procs=2)
    store = write_run(tmp_path / "one", submitted(), progress=trained(40, ranks=ranks), workers=size)
    reports.write_status(store, {"at": now, "attempts": [{"number": 1}], "waiting": None, "stragglers": [5]})
    told = Browser(tmp_path).of("one", "/workers").json()
    assert [unit["unit"] for unit in told["units"]] == [0, 1]
    workers = {one["name"]: one for unit in told["units"] for one in unit["workers"]}
    assert list(workers) == ["node-0", "node-1", "node-2", "node-3"]
    assert workers["node-2"]["ranks"] == [4, 5]
    assert workers["node-2"]["straggler"]
    assert workers["node-2"]["relative"] == 1.0
    assert workers["node-2"]["relative_forward"] == pytest.approx(9.0)
    assert not workers["node-0"]["straggler"]
    assert workers["node-3"]["state"] == "starting"
    assert workers["node-3"]["ranks"] == []
    assert told["median_step_seconds"] == 0.1


# -- events --------------------------------------------------------------------------------------------------------


def test_events_have_their_evidence(tmp_path: Path) -> None:
    now = time.time()
    write_run(tmp_path / "one", submitted(), ev.WorkersEnded(now, 1, failed()), ev.AttemptGone(now, 1))
    told = Browser(tmp_path).of("one", "/events").json()
    assert [event["seq"] for event in told["events"]] == [0, 1, 2, 3]
    assert (told["total"], told["next"]) == (4, 3)
    over = told["events"][2]
    assert (over["kind"], over["level"], over["attempt"]) == ("failure", "warning", 1)
    assert over["evidence"]["error"] == "ValueError: bad"
    assert over["evidence"]["exit_code"] == 1
    assert over["log"] == {"attempt": 1, "rank": 1, "generation": None}


def test_events_are_filtered_and_go_on(tmp_path: Path) -> None:
    now = time.time()
    saves = [ev.CheckpointCommitted(now, 1, step, f"checkpoints/manifests/{step}") for step in range(1, 31)]
    write_run(tmp_path / "one", submitted(), *saves, ev.SaveFailed(now, 1, 40, "node-1", "the disk is full"))
    browser = Browser(tmp_path)
    first = browser.of("one", "/events", limit=10).json()
    assert (len(first["events"]), first["total"], first["next"]) == (10, 33, 9)
    rest = browser.of("one", "/events", after=first["next"]).json()
    assert [event["seq"] for event in rest["events"]] == list(range(10, 33))
    assert browser.of("one", "/events", after=rest["next"]).json()["events"] == []
    assert [event["event"] for event in browser.of("one", "/events", level="warning").json()["events"]] == [
        "SaveFailed"
    ]
    assert [event["event"] for event in browser.of("one", "/events", q="DISK full").json()["events"]] == [
        "SaveFailed"
    ]
    assert browser.of("one", "/events", level="loud").status_code == 400


# -- logs ----------------------------------------------------------------------------------------------------------


def write_log(store: Store, data: bytes, *, rank: int = 0, attempt: int = 1, part: int = 0) -> None:
    key = layout.attempt_logs(attempt) + layout.rank_log(1, rank)
    store.put(layout.log_part(key, part), data)


def test_the_failing_rank_comes_first(tmp_path: Path) -> None:
    now = time.time()
    store = write_run(
        tmp_path / "one", submitted(), ev.WorkersEnded(now, 1, failed()), ev.AttemptGone(now, 1)
    )
    for rank in range(3):
        write_log(store, b"x" * rank, rank=rank)
    told = Browser(tmp_path).of("one", "/logs").json()
    assert told["default"] == {"attempt": 1, "rank": 1}
    assert [(one["rank"], one["bytes"], one["failed"]) for one in told["attempts"][0]["ranks"]] == [
        (1, 1, True),
        (0, 0, False),
        (2, 2, False),
    ]


@pytest.mark.parametrize("parts", [1, 3])
def test_all_text_is_read_in_whole_lines(tmp_path: Path, parts: int) -> None:
    """Also letters of several bytes, across the parts that a service needs, which cannot append."""
    whole = "".join(f"{number}: é {'ß' * (number % 97)}\n" for number in range(20_000)).encode()
    store = write_run(tmp_path / "one", submitted())
    edges = [len(whole) * part // parts for part in range(parts + 1)]
    for part in range(parts):
        write_log(store, whole[edges[part] : edges[part + 1]], part=part)
    browser, at, found = Browser(tmp_path), 0, ""
    while at < len(whole):
        told = browser.of("one", "/logs/text", attempt=1, rank=0, offset=at, limit=10**9).json()
        assert told["offset"] == at
        assert 0 < told["next"] - at <= MOST_BYTES
        assert told["text"].endswith("\n")
        found, at = found + told["text"], told["next"]
    assert found.encode() == whole
    end = browser.of("one", "/logs/text", attempt=1, rank=0, offset=-100).json()
    assert whole.decode().endswith("\n" + end["text"])
    assert end["next"] == end["size"] == len(whole)
    matches = browser.of("one", "/logs/text", attempt=1, rank=0, q="1999: É").json()["matches"]
    assert [match["line"].partition(":")[0] for match in matches] == ["1999", "11999"]
    matches = browser.of("one", "/logs/text", attempt=1, rank=0, q="19999:").json()["matches"]
    assert [whole[match["offset"] :].startswith(b"19999: ") for match in matches] == [True]


def test_a_line_of_a_megabyte_is_cut_and_says_so(tmp_path: Path) -> None:
    store = write_run(tmp_path / "one", submitted())
    write_log(store, b"first\n" + b"x" * 1_000_000 + b"needle\nlast\n")
    browser = Browser(tmp_path)
    told = browser.of("one", "/logs/text", attempt=1, rank=0, offset=6, limit=MOST_BYTES, q="NEEDLE").json()
    assert len(told["text"]) < LONGEST_LINE + 100
    assert "more of this line)" in told["text"]
    assert told["next"] == 6 + MOST_BYTES
    (match,) = told["matches"]
    assert match["offset"] == 6
    assert "needle" in match["line"]
    assert len(match["line"]) < 600


def test_there_is_no_such_output(tmp_path: Path) -> None:
    write_run(tmp_path / "one", submitted())
    browser = Browser(tmp_path)
    assert browser.of("one", "/logs").json() == {"attempts": [], "default": None}
    answer = browser.of("one", "/logs/text", attempt=1, rank=7)
    assert answer.status_code == 400
    assert "no output of rank 7 in attempt 1" in answer.json()["detail"]
    assert browser.of("one", "/logs/text", attempt="x", rank=7).status_code == 422


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_that_are_there_damaged_pinned_and_not_written_yet(tmp_path: Path) -> None:
    store = write_run(tmp_path / "one", submitted(), progress=trained(90, saved=80))
    for step in (20, 40, 60):
        save(store, step, metrics={"loss": step / 100})
    checkpoint_retention.pin(store, 20, by="ada@laptop")
    checkpoint_retention.quarantine(store, 40, "its bytes have changed")
    checkpoint_retention.note_verified(store, 20)
    store.put(layout.manifest(50), b"no manifest")
    told = Browser(tmp_path).of("one", "/checkpoints").json()["checkpoints"]
    assert [one["step"] for one in told] == [80, 60, 50, 40, 20]
    by_step = {one["step"]: one for one in told}
    assert by_step[80]["tiers"] == ["memory"]
    assert by_step[60]["tiers"] == ["storage"]
    assert by_step[60]["bytes"] == 5
    assert by_step[60]["metrics"] == {"loss": 0.6}
    assert "is no manifest" in by_step[50]["damaged"]
    assert by_step[40]["damaged"] == "its bytes have changed"
    assert by_step[20]["pinned"]["by"] == "ada@laptop"
    assert by_step[20]["verified"]
    assert not by_step[60]["verified"]


def test_when_it_was_verified_who_uses_it_and_which_tiers_have_it(tmp_path: Path) -> None:
    before = trained(30, saved=20)
    ended = (ev.WorkersEnded(time.time(), 1, failed(), before), ev.AttemptGone(time.time(), 1, before))
    stretch = replace(before.stretches[0], from_step=20)
    now = trained(70, attempt=2, saved=60, stretches=(stretch,))
    now = replace(now, on_disk=("000000000060-a0002-g01", "000000000070-a0002-g01"))
    store = write_run(tmp_path / "one", submitted(), *ended, submitted(2), progress=now)
    save(store, 20)
    save(store, 40)
    save(store, 60, attempt=2)
    checkpoint_retention.note_verified(store, 20, at=100.0, by="ranks of attempt 2")
    checkpoint_retention.note_verified(store, 60, at=200.0, by="ada@laptop, by `verify`", also=[60])
    checkpoint_retention.note_use(store, checkpoints.read(store, 40), by="run s3://bucket/other")
    for data in (checkpoints.read(store, 40).data, "files of another attempt"):
        one = Evaluation(data.rstrip("/")[-3:], "/runs/evaluation", 50.0, {"accuracy": 0.9}, data)
        checkpoint_retention.note_evaluation(store, layout.evaluations(40), one)
    checkpoint_retention.pin(store, 40, by="ada@laptop")
    told = Browser(tmp_path).of("one", "/checkpoints").json()["checkpoints"]
    newest, middle, oldest = told
    assert newest["tiers"] == ["storage", "memory", "disk"]
    assert (newest["verified"], newest["verified_at"]) == (True, 200.0)
    assert (middle["verified"], middle["verified_at"], middle["tiers"]) == (False, None, ["storage"])
    assert middle["used_by"] == ["run s3://bucket/other"]
    assert middle["evaluations"] == [{"metrics": {"accuracy": 0.9}, "at": 50.0, "by": "/runs/evaluation"}]
    assert newest["evaluations"] == []
    assert middle["pinned"]["by"] == "ada@laptop"
    assert time.time() - middle["pinned"]["at"] < PATIENCE_SECONDS
    assert (oldest["verified"], oldest["verified_by"]) == (False, "ranks of attempt 2")
    assert oldest["used_by"] == ["attempt 2"]
    assert "saved" not in oldest


def test_what_is_known_of_a_checkpoint_goes_with_its_files(tmp_path: Path) -> None:
    """The same step may be saved again, by another attempt."""
    store = write_run(tmp_path / "one", submitted())
    save(store, 20)
    checkpoint_retention.note_verified(store, 20, by="ranks")
    checkpoint_retention.note_use(store, checkpoints.read(store, 20), by="run /other")
    checkpoint_retention.quarantine(store, 20, "the run goes on from step 10")
    save(store, 20, attempt=2)
    told = Browser(tmp_path).of("one", "/checkpoints").json()["checkpoints"]
    again = next(one for one in told if one["damaged"] is None)
    assert (again["verified_at"], again["used_by"]) == (None, [])


def test_earlier_releases_recorded_neither_who_nor_when(tmp_path: Path) -> None:
    store = write_run(tmp_path / "one", submitted())
    save(store, 20)
    store.put(layout.VERIFIED, b'{"step": 20}')
    store.put(layout.pin(20), b'{"by": "ada@laptop"}')
    (told,) = Browser(tmp_path).of("one", "/checkpoints").json()["checkpoints"]
    assert (told["verified"], told["verified_at"]) == (True, None)
    assert told["pinned"] == {"by": "ada@laptop", "at": None}
    assert told["used_by"] == []


def test_a_removed_checkpoint_takes_what_is_known_of_it_along(tmp_path: Path) -> None:
    store = write_run(tmp_path / "one", submitted())
    for step in (20, 40):
        save(store, step)
        checkpoint_retention.note_use(store, checkpoints.read(store, step), by="run /other")
    checkpoint_retention.prune(store, CheckpointPolicy(keep_last=1))
    assert checkpoint_retention.all_uses(store).keys() == {40}
    assert [entry.key for entry in store.list(layout.PINS)] == []
