"""Objects of the user's own come back as they were, and nothing is unpickled that the script does not trust."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.format.tensor_split import Held, HeldArray, Rest
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.forging import Hostile, forging
from tests.support.training.saving import objects, restorer, save, spoil, wide


def test_a_hostile_pickle_beside_a_good_checkpoint_is_never_opened(tmp_path: Path) -> None:
    good = objects(1)
    save(tmp_path, 5, good)
    save(tmp_path, 9, objects(2))
    marker = tmp_path / "owned"
    values = tmp_path / layout.checkpoint_data(9, 1, 1) / "rank-00000.bin"
    values.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert not marker.exists()


@pytest.mark.parametrize("form", ["pickle", "archive"])
@pytest.mark.parametrize("key", ["other.diary.rest", "random.0.python", "model.0._extra_state"])
def test_a_hostile_checkpoint_with_all_its_checksums_is_never_unpickled(
    form: str, key: str, tmp_path: Path
) -> None:
    """Who can write into the run's folder can write a manifest, too."""

    def state(seed: int) -> Stateful:
        one = objects(seed)
        model = torch.nn.Sequential(Noting(4, 4), torch.nn.Linear(4, 1))
        return Stateful(model, (torch.optim.AdamW(model.parameters()),), {**one.others, "diary": Diary()})

    good, loaded, made = state(1), state(3), tmp_path / "made"
    save(tmp_path / "run", 5, good)
    with forging(key, Hostile(made), form):
        save(tmp_path / "run", 9, state(2))
    store = open_store(str(tmp_path / "run"))
    assert not checkpoints.problems(store, checkpoints.read(store, 9)), "nobody could tell by its checksums"
    with pytest.raises(InvalidInput) as refused:
        restorer(tmp_path / "run").restore(loaded)
    assert not made.exists()
    assert (
        f"checkpoint 9 of {store.uri} is whole, but {key} holds posix.mkdir, which is not unpickled"
        in str(refused.value)
    )
    assert "torch.serialization.add_safe_globals" in str(refused.value)
    # A script may have forgotten to say that it trusts a type: what it has saved is not set aside for that.
    assert (list(Mailbox(store).read()), checkpoints.steps(store)) == ([], [5, 9])
    assert not checkpoint_retention.quarantined(store)
    store.delete([layout.manifest(9)])  # as it says
    manifest = restorer(tmp_path / "run").restore(loaded)
    assert manifest is not None
    assert manifest.step == 5
    assert torch.equal(good.model[0].weight, loaded.model[0].weight)  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"last_epoch": 3}, "is a dict, not a state that airflow-elastic writes"),
        (Rest({"table": Held("/table")}), "names a tensor, '/table', that the checkpoint does not have"),
        (Rest([HeldArray("array:/1")]), "names a tensor, 'array:/1', that the checkpoint does not have"),
    ],
)
def test_an_object_that_somebody_else_has_written_is_refused(rest: object, why: str, tmp_path: Path) -> None:
    with forging("other.schedule.rest", rest, "pickle"):
        save(tmp_path, 9, objects(2))
    with pytest.raises(InvalidInput, match=f"checkpoint 9 of .* is whole, but its 'schedule' {why}"):
        restorer(tmp_path).restore(objects(1))
    assert checkpoints.steps(open_store(str(tmp_path))) == [9]


class Noting(torch.nn.Linear):
    """Its state is not all tensors."""

    def get_extra_state(self) -> str:
        return "a note"

    def set_extra_state(self, state: Any) -> None:
        assert state == "a note"


@dataclass
class Mood:
    """Of a script's own."""

    name: str


def test_what_no_restore_would_unpickle_is_refused_with_the_first_save(tmp_path: Path) -> None:
    diary = Diary("mon")
    diary.pages["mood"] = [Mood("good")]
    what = replace(objects(1), others={"diary": diary})
    with pytest.raises(
        InvalidInput, match=rf"other\.diary\['pages'\]\['mood'\]\[0\] holds {__name__}\.Mood, "
    ):
        save(tmp_path, 5, what)
    with torch.serialization.safe_globals([Mood]):
        save(tmp_path, 5, what)
        loaded = Diary()
        restorer(tmp_path).restore(replace(objects(2), others={"diary": loaded}))
    assert loaded.pages["mood"] == [Mood("good")]


def test_one_that_is_damaged_as_well_is_set_aside_like_any_other(tmp_path: Path) -> None:
    diary = Diary()
    diary.pages["mood"] = Mood("good")
    save(tmp_path, 5, replace(wide(1), others={"diary": Diary()}))
    with torch.serialization.safe_globals([Mood]):
        save(tmp_path, 9, replace(wide(1), others={"diary": diary}))
    spoil(tmp_path, 9, "flip")
    manifest = restorer(tmp_path).restore(replace(wide(2), others={"diary": Diary()}))
    assert manifest is not None
    assert manifest.step == 5
    assert list(checkpoint_retention.quarantined(open_store(str(tmp_path)))) == [9]


def test_what_the_script_does_not_trust_any_more_stays(tmp_path: Path) -> None:
    """A script that has forgotten to say so again loses nothing."""
    diary = Diary()
    diary.pages["mood"] = Mood("good")
    with torch.serialization.safe_globals([Mood]):
        for step in (5, 9):
            save(tmp_path, step, replace(objects(1), others={"diary": diary}))
    with pytest.raises(InvalidInput, match=r"checkpoint 9 .*Mood, which is not unpickled"):
        restorer(tmp_path).restore(replace(objects(2), others={"diary": Diary()}))
    with torch.serialization.safe_globals([Mood]):
        manifest = restorer(tmp_path, attempt=3).restore(replace(objects(2), others={"diary": Diary()}))
    assert manifest is not None
    assert manifest.step == 9


class Diary:
    """A user's own object, which has more to say the longer it lives."""

    def __init__(self, *days: str) -> None:
        self.pages: dict[str, Any] = {
            day: [len(day), {"words": torch.full((2,), float(len(day)))}] for day in days
        }

    def state_dict(self) -> dict[str, Any]:
        return {"pages": self.pages, "last": list(self.pages)[-1:]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pages = state["pages"]


def test_objects_of_the_users_own_come_back_as_they_were(tmp_path: Path) -> None:
    """Also where they have other keys by now than a new one has: what is unknown would be left out in silence."""
    saved, fresh, older = Diary("mon", "tuesday"), Diary(), Diary("mon", "a day that never came")
    save(tmp_path, 5, replace(objects(1), others={"diary": saved}))
    for diary in (fresh, older):
        restorer(tmp_path).restore(replace(objects(2), others={"diary": diary}))
        assert diary.pages.keys() == {"mon", "tuesday"}
        assert torch.equal(diary.pages["tuesday"][1]["words"], torch.tensor([7.0, 7.0]))
        assert diary.pages["mon"][0] == 3
