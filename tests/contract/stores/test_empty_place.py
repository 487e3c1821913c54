"""A run begins only where nothing lies that is somebody's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.empty_place import foreign_object
from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_elastic.adapters.storage.store import Store
    from tests.support import s3

SPEC = RunSpec(("train.py",), name="digits")


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield open_store(str(tmp_path / "project"))
        return
    server: s3.S3Server = request.getfixturevalue("s3_server")
    store = server.store()
    yield store
    store.delete(entry.key for entry in store.list())


def test_runs_below_a_place_are_found_and_what_is_in_them_is_not_looked_through(place: Store) -> None:
    entry = layout.journal_entry(0)
    for key in (f"a/b/{entry}", f"a/b/c/{entry}", f"one/{entry}", "one/logs/x.log", "notes/journal/x", "top"):
        place.put(key, b"x")
    assert runs_below(place) == ["a/b", "one"]
    place.delete([f"a/b/{entry}"])
    assert runs_below(place) == ["a/b/c", "one"]


def test_a_place_that_is_not_there_has_no_runs_below(tmp_path: Path) -> None:
    assert runs_below(open_store(str(tmp_path / "nowhere"))) == []


def begin(store: Store) -> None:
    start_run(store, SPEC, engine=FakeEngine())


@pytest.mark.parametrize(
    "own",
    [
        "train.py",
        "local/notes.txt",
        "status.json",
        "checkpoints/mine.pt",
        "checkpoints/manifests/README",
        "control/panel.json",
        ".git/HEAD",
        "runs/first/journal/00000000.json",
    ],
)
def test_a_folder_of_somebodys_own_is_refused_and_left_as_it_is(place: Store, own: str) -> None:
    place.put(own, b"precious")
    told = f"{place.uri} is not empty and holds no run (it has '{own}'): give an empty or new folder, "
    with pytest.raises(InvalidInput, match=re.escape(f"{told}e.g. {place.uri}/runs/digits")):
        begin(place)
    assert [entry.key for entry in place.list()] == [own]
    assert place.get(own) == b"precious"


@pytest.mark.parametrize(
    "before",
    [
        lambda store: None,
        lambda store: Mailbox(store).post("stop", by="somebody early"),
        lambda store: store.put("controller.log", b"of a controller before"),
        lambda store: store.put(".elastic-probe-0123456789abcdef", b"of a probe that was killed"),
        lambda store: (
            store.put("checkpoints/manifests/000000000340.json", b"{}"),
            store.put("checkpoints/verified.json", b'{"step": 340}'),
            store.put("checkpoints/data/000000000340-a0002-g01/sub/__0_0.distcp", b"copied from another run"),
        ),
    ],
)
def test_what_may_come_before_a_run_does_no_harm(place: Store, before: Callable[[Store], object]) -> None:
    before(place)
    begin(place)
    begin(place)  # a second controller finds the run


def test_what_only_a_file_system_has_is_judged_too(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / ".elastic-tmp-0123").touch()
    (tmp_path / ".nfs000000000a1b2c3d00000001").touch()
    assert foreign_object(store) is None
    (tmp_path / "data").symlink_to("/nowhere")
    assert foreign_object(store) == "data"
    (tmp_path / "data").unlink()
    (tmp_path / "odd\nname").touch()
    assert foreign_object(store) == "odd\nname"


def test_another_controllers_first_words_are_not_taken_for_somebodys_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_elastic.control import runs

    store = open_store(str(tmp_path))

    def meanwhile(_: Store) -> str | None:
        monkeypatch.setattr(runs, "foreign_object", foreign_object)
        begin(store)
        return foreign_object(store)

    monkeypatch.setattr(runs, "foreign_object", meanwhile)
    begin(store)
