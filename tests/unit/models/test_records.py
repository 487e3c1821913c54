"""Records of promotions: created once each, and the newest one counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.spec.models import Compared, Lineage, Promotion, Weights, layout


def a_promotion(number: int, **changes: object) -> Promotion:
    sha = f"{number:064x}"
    first = Promotion(
        number=number,
        kind="promote",
        weights=Weights(layout.weights(sha, ".safetensors"), "safetensors", 12, sha),
        run="/runs/one",
        step=340,
        metrics={"accuracy": 0.9},
        by="anna, from a shell",
        at=1000.0,
        id=f"id {number}",
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def test_nothing_is_promoted_yet(home: Store) -> None:
    assert promotions.current(home) is None
    assert promotions.history(home) == []
    assert promotions.mend(home) is None
    with pytest.raises(InvalidInput, match=r"has no promotion 3; there are: none"):
        promotions.read(home, 3)


def test_the_newest_one_counts_and_nobody_can_take_its_number(home: Store) -> None:
    whole = a_promotion(
        2,
        compared=Compared(1, {"accuracy": 0.8}),
        rule="accuracy > promoted",
        why="better",
        replaces=1,
        lineage=Lineage({"source": "/runs/zero"}, {"bundle": "dags"}, {"days": ["2026-01-01"]}),
    )
    assert promotions.create(home, a_promotion(1))
    assert promotions.create(home, whole)
    assert not promotions.create(home, a_promotion(2, id="another"))
    assert promotions.current(home) == whole
    assert promotions.history(home) == [a_promotion(1), whole]


def test_the_copy_for_others_is_mended(home: Store) -> None:
    promotions.create(home, a_promotion(1))
    promotions.mend(home)
    promotions.create(home, a_promotion(2))
    assert json.loads(home.get(layout.CURRENT) or b"")["number"] == 1
    assert promotions.mend(home) == a_promotion(2)
    assert home.get(layout.CURRENT) == home.get(layout.promotion(2))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "cannot be read as a promotion"),
        (b"[]", "cannot be read as a promotion"),
        (b'{"version": 99}', "version 99, this release reads 1"),
        (b'{"number": 1}', "this field is required"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(home: Store, content: bytes, said: str) -> None:
    home.put(layout.promotion(1), content)
    with pytest.raises(StoreError, match=said) as error:
        promotions.current(home)
    assert f"{home.uri}/promotions/00000001.json" in str(error.value)


def test_a_copied_record_is_no_promotion(home: Store) -> None:
    promotions.create(home, a_promotion(1))
    home.put(layout.promotion(2), home.get(layout.promotion(1)) or b"")
    with pytest.raises(StoreError, match="it is a copy of promotion 1"):
        promotions.current(home)
    home.put("promotions/notes.txt", b"no record")
    assert promotions.numbers(home) == [1, 2]
