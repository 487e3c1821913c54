"""A promoter is killed, or its storage fails, at each write: the old or the new model is promoted, never neither."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models import NotBetter, Request, promote, rollback
from airflow_elastic.control.models.publish import problem
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.models import Promotion, layout
from tests.support.models import Watched, a_run, content, exported, keys, restore

METRICS = {step: {"accuracy": step / 100} for step in (10, 20, 30, 40, 50)}

#: More moments than a promotion has.
MANY = 40


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return a_run(tmp_path / "run", METRICS)


def _promote(home: Store, run: Store, step: int, told: object = None) -> Promotion:
    moments = [0]
    if told is not None:
        home, run = Watched(home, told, moments), Watched(run, told, moments)  # type: ignore[assignment,arg-type]
    return promote(home, run, Request("anna", step=step, rule="accuracy > promoted"), exported)


def _whole(home: Store, steps: tuple[int, ...]) -> None:
    """One of these is promoted, and every model of the history can be loaded."""
    now = promotions.current(home)
    assert (now.step if now else 0) in steps
    for one in promotions.history(home):
        assert problem(home, one.weights) is None


def _killed(home: Store, run: Store, step: int, moment: int) -> bool:
    """Whether a process that promotes came to this moment, at which it is killed."""

    def told(now: int) -> None:
        if now == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=_promote, args=(home, run, step, told))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.siblings
@pytest.mark.parametrize("first", [True, False], ids=["the first model", "a later model"])
def test_killed_at_each_moment(first: bool, home: Store, run: Store) -> None:
    if not first:
        _promote(home, run, 10)
    old = promotions.current(home)
    places = {store: content(store) for store in (home, run)}
    seen = set()
    for moment in range(MANY):
        for store, objects in places.items():
            restore(store, objects)
        was_killed = _killed(home, run, 20, moment)
        _whole(home, (old.step if old else 0, 20))
        if not was_killed:
            break
        seen.add(len(keys(home)) - len(places[home]))
        if (now := promotions.current(home)) == old:
            now = _promote(home, run, 20)
        assert now is not None
        assert (now.number, now.step) == (old.number + 1 if old else 1, 20)
        after = _promote(home, run, 30)
        assert promotions.current(home) == after
        assert home.get(layout.CURRENT) == home.get(layout.promotion(after.number))
        assert len(home.list(layout.WEIGHTS)) == after.number, "what was left is used"
    else:
        raise AssertionError("it was killed each time")
    assert moment >= 8, "pin, weights, record and copy, before and after each"
    assert seen >= {0, 1, 2}


@pytest.mark.parametrize("moment", range(12))
def test_a_write_that_fails(moment: int, home: Store, run: Store) -> None:
    old = _promote(home, run, 10)

    def told(now: int) -> None:
        if now == moment:
            raise StoreError("the service does not answer")

    try:
        new = _promote(home, run, 20, told)
    except StoreError:
        _whole(home, (10, 20))
    else:
        assert new.number == old.number + 1
    if (now := promotions.current(home)) == old:
        now = _promote(home, run, 20)
    assert now is not None
    assert now.step == 20
    assert promotions.mend(home) == now
    assert home.get(layout.CURRENT) == home.get(layout.promotion(2))
    assert rollback(home, by="bob", why=None).step == 10


def test_promoters_at_once_compare_with_each_other(home: Store, run: Store) -> None:
    """All have compared with the same model when the first of them promotes."""
    _promote(home, run, 10)
    together = threading.Barrier(4)
    outcomes: dict[int, Promotion | NotBetter] = {}

    def one(step: int) -> None:
        def export(source: Store, at: int, path: Path) -> None:
            together.wait()
            exported(source, at, path)

        try:
            request = Request("anna", step=step, rule="accuracy > promoted")
            outcomes[step] = promote(home, run, request, export)
        except NotBetter as error:
            outcomes[step] = error

    threads = [threading.Thread(target=one, args=(step,)) for step in (20, 30, 40, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = promotions.history(home)
    assert history[-1].step == 50, "the best one"
    assert [one.number for one in history] == [*range(1, len(history) + 1)]
    for before, after in itertools.pairwise(history):
        assert after.compared is not None
        assert (after.compared.number, after.replaces) == (before.number, before.number)
        assert after.metrics["accuracy"] > before.metrics["accuracy"]
    assert {step for step, told in outcomes.items() if isinstance(told, Promotion)} == {
        one.step for one in history[1:]
    }
    assert home.get(layout.CURRENT) == home.get(layout.promotion(history[-1].number))
