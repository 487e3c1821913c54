"""What makes two specifications the same run: what they train, and not the folder that the code is in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import start_run
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import due, evolve
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Delete, Rejoin, Submit
from airflow_elastic.spec.comparison import differences, is_same
from airflow_elastic.spec.errors import RunDiffers
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import LIVE, job, rank, spec, story, worker

ROOTS = ("/bundles/ml/versions/1a2b", "/bundles/ml/versions/3c4d")


def at(root: str, **changes: Any) -> RunSpec:
    """A run whose code is below a folder, in all the places where people write it."""
    fields: dict[str, Any] = {
        "command": ("train.py", "--config", f"{root}/conf/a.yaml", f"--data={root}/data"),
        "working_dir": f"{root}/dags",
        "source_root": root,
        "env": {"PYTHONPATH": f"/opt/lib:{root}/lib:{root}"},
        "engine_options": {"volumes": [{"hostPath": {"path": f"{root}/cache"}}]},
    }
    return spec(**{**fields, **changes})


def test_the_same_code_in_another_folder_is_the_same_run() -> None:
    one, other = map(at, ROOTS)
    assert is_same(one, other)
    assert one.digest == other.digest
    assert differences(one, other) == []
    assert is_same(spec(working_dir="/releases/7"), spec(working_dir="/releases/8"))
    assert is_same(
        spec(working_dir="/releases/7", command=("/releases/7/train.py",)),
        spec(working_dir="/releases/8/", command=("/releases/8/train.py",)),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"working_dir": f"{ROOTS[1]}/other"},
        {"command": ("train.py", "--config", f"{ROOTS[1]}/conf/b.yaml", f"--data={ROOTS[1]}/data")},
        {"command": ("train.py", "--config", f"{ROOTS[1]}5/conf/a.yaml", f"--data={ROOTS[1]}/data")},
        {"env": {"PYTHONPATH": f"/opt/lib:/mnt{ROOTS[1]}/lib:{ROOTS[1]}"}},
        {"name": "another"},
    ],
)
def test_other_code_of_the_same_bundle_is_another_run(changes: dict[str, Any]) -> None:
    one, other = at(ROOTS[0]), at(ROOTS[1], **changes)
    assert not is_same(one, other)
    assert one.digest != other.digest
    assert differences(one, other)


paths = st.lists(st.text("ab1._-", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)
folders = paths.map("/".__add__)


@given(folders, folders, paths, st.sampled_from(["{}", "--option={}", "a:{}:b", "{} --more", "'{}'"]))
def test_wherever_a_path_is_written_it_moves_with_its_folder(
    one: str, other: str, path: str, written: str
) -> None:
    old, new = (
        spec(command=("train.py", written.format(f"{root}/{path}")), source_root=root)
        for root in (one, other)
    )
    assert is_same(old, new)
    changed = replace(new, command=(*new.command[:1], new.command[1] + "x"))
    assert not is_same(old, changed)


def test_the_next_attempt_begins_in_the_new_folder_and_in_a_job_of_its_own() -> None:
    """In the job of the one before, agents and spares are in the folder that may be removed."""
    failed = ev.WorkersEnded(
        2.0,
        1,
        job(*(worker(name=f"node-{n}", standby=True, errors=(rank(1, error="E: x"),)) for n in range(2))),
    )
    stays = story(*LIVE, failed, run=at(ROOTS[0]))
    assert due(stays) == (Rejoin(2),)
    live = story(*LIVE, run=at(ROOTS[0]))
    moved = evolve(live, ev.RunMoved(1.5, at(ROOTS[1])))
    assert moved.spec == at(ROOTS[1])
    assert due(moved) == (), "training is not interrupted"
    assert sentence(ev.RunMoved(1.5, at(ROOTS[1])), live, moved) == (
        f"the code of the run is in another folder now: {ROOTS[1]}; the next attempt begins there, "
        f"and not in {ROOTS[0]}"
    )
    ended = evolve(moved, failed)
    assert isinstance(due(ended)[0], Delete)
    follows = evolve(ended, ev.AttemptGone(3.0, 1))
    assert due(follows) == (Submit(2, 2),)
    assert not follows.attempt.moved
    assert evolve(follows, ev.RunMoved(4.0, at(ROOTS[1]))) == follows


def test_a_corrected_script_is_for_the_next_attempt_as_a_corrected_file_is() -> None:
    one, other = (spec(command=("fit.py",), script=text) for text in ("print(1)", "print(2)"))
    assert (one.digest, is_same(one, other), differences(one, other)) == (other.digest, True, [])
    assert not is_same(one, replace(other, command=("fit.py", "--more")))
    live = story(*LIVE, run=one)
    moved = evolve(live, ev.RunMoved(1.5, other))
    assert (due(moved), moved.spec.script) == ((), "print(2)")
    told = sentence(ev.RunMoved(1.5, other), live, moved)
    assert told == "fit.py has changed; the next attempt begins with the new text"


def test_a_run_is_carried_on_in_another_folder_and_its_success_stays_where_it_was(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    one, other = (replace(at(root), engine="fake", engine_options={}, launcher="python") for root in ROOTS)
    run = start_run(store, one, owner="try-1", task="d/r/t/-1", engine=FakeEngine())
    start_run(store, other, owner="try-2", task="d/r/t/-1", engine=FakeEngine())
    assert (run.state.spec, run.state.owner, run.state.task) == (other, "try-2", "d/r/t/-1")
    journal = Journal(store)
    assert [type(event).__name__ for event in journal.read()] == ["RunCreated", "RunMoved", "OwnerChanged"]
    with pytest.raises(
        RunDiffers, match=r"command: .*'--config', '{source_root}/conf.* there, .*'--other'.* asked"
    ):
        start_run(
            store, replace(other, command=("train.py", "--other", *other.command[2:])), engine=FakeEngine()
        )
    journal.append(3, ev.RunEnded(9.0, "stopped", "ada"))
    start_run(store, one, owner="try-3", engine=FakeEngine())
    assert (run.state.spec, run.state.ended, len(run.state.attempts)) == (one, False, 2)
    journal.append(len(journal.read()), ev.RunEnded(10.0, "succeeded", "done"))
    start_run(store, other, owner="try-4", engine=FakeEngine())
    assert run.state.spec == one
