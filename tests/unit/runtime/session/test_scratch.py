"""Passes that are to leave no trace: whatever they do, and however often, a run ends as if they had not been."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.checkpoints.sample_accounts import prove
from airflow_elastic.runtime.model_changes.rollback import Rollback
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.runs.attempts import Killed, attempt, to_the_end
from tests.unit.runtime.session.test_phases_and_epochs import Fate, digest, net, train

PLACES = ("before restore", "before the loop", "head of an epoch", "between steps", "end of an epoch", "end")
POLICY = CheckpointPolicy(every_steps=2, account_samples=True)


def lr_find(run: Session, model: Any, optimizer: Any, data: Any) -> float:
    """With all that a training does: steps, epochs, saves, a schedule, luck, a group that is added."""
    extra = torch.nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra]})
    for epoch in run.epochs(2):
        for (x,) in run.loader(data, global_batch=8):
            for group in optimizer.param_groups:
                group["lr"] *= 1.5
            loss = (model(x + torch.rand(1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss, epoch=float(epoch))
    run.save()
    assert run.steps == 6
    random.random()
    model.eval()
    model.requires_grad_(False)
    model.add_module("new", torch.nn.Linear(1, 1))
    return loss.item()


def script(fate: Fate, *places: str, attempts: tuple[int, ...] = ()) -> Callable[[Session], str]:
    def run_it(run: Session) -> str:
        model, optimizer = net()
        data = TensorDataset(torch.randn(22, 4))

        def pass_at(place: str) -> None:
            if place in places and (not attempts or run.attempt in attempts):
                with run.scratch(*((model, optimizer) if place == PLACES[0] else ())):
                    assert run.in_scratch
                    lr_find(run, model, optimizer, data)

        pass_at("before restore")
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        run.restore(model, optimizer, schedule=schedule)
        pass_at("before the loop")
        for _ in run.epochs(3):
            pass_at("head of an epoch")
            for (x,) in run.loader(data, global_batch=8):
                train(run, model, optimizer, x, fate)
                pass_at("between steps")
            schedule.step()
            pass_at("end of an epoch")
        pass_at("end")
        run.finish()
        return digest(model, optimizer, schedule)

    return run_it


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    result = attempt(run, 1, POLICY, script(Fate()))
    assert result is not None
    return result, kept(run)


def kept(run: Path) -> list[int]:
    return checkpoints.steps(open_store(str(run)))


def test_a_pass_leaves_nothing_behind(undisturbed: tuple[str, list[int]], tmp_path: Path) -> None:
    """Wherever it is: each place has a pass of its own."""
    run = tmp_path / "run"
    assert attempt(run, 1, POLICY, script(Fate(), *PLACES)) == undisturbed[0]
    store = open_store(str(run))
    assert kept(run) == undisturbed[1]
    newest = checkpoints.read(store, kept(run)[-1])
    assert (newest.phases, newest.epoch, newest.samples, newest.metrics.keys()) == ((), 3, 66, {"loss"})
    proof = prove(list(read_accounts(store)), newest.step, newest.saved_by)
    assert [(epoch.phase, epoch.number, epoch.counted, epoch.complete) for epoch in proof.epochs] == [
        (0, number, 22, True) for number in range(3)
    ]
    assert proof.holds


@pytest.mark.parametrize("attempts", [(1,), (2,), ()], ids=["passed by", "done later", "repeated"])
def test_a_restart_may_pass_by_it_or_repeat_it(
    attempts: tuple[int, ...], undisturbed: tuple[str, list[int]], tmp_path: Path
) -> None:
    again = script(Fate(7), *PLACES, attempts=attempts)
    assert to_the_end(tmp_path / "run", POLICY, again) == (undisturbed[0], 2)


def test_a_pass_that_fails_is_put_back_too(undisturbed: tuple[str, list[int]], tmp_path: Path) -> None:
    def failing(run: Session) -> str:
        model, optimizer = net()
        data = TensorDataset(torch.randn(22, 4))

        def fail() -> None:
            with run.scratch(model, optimizer):
                lr_find(run, model, optimizer, data)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        run.restore(model, optimizer, schedule=schedule)
        for _ in run.epochs(3):
            for (x,) in run.loader(data, global_batch=8):
                train(run, model, optimizer, x, Fate())
            schedule.step()
        run.finish()
        return digest(model, optimizer, schedule)

    assert attempt(tmp_path / "run", 1, POLICY, failing) == undisturbed[0]


def test_who_is_to_end_within_a_pass_saves_what_was_before_it(
    undisturbed: tuple[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent asks, and ends the rank when that has saved."""
    from airflow_elastic.runtime.session.save_schedule import SaveSchedule

    run, parked = tmp_path / "run", []

    def park(saves: SaveSchedule) -> None:
        parked.append(True)
        raise Killed

    monkeypatch.setattr(SaveSchedule, "_park", park)

    def asked(session: Session) -> str:
        if session.attempt > 1:
            return script(Fate())(session)
        model, optimizer = net()
        data = TensorDataset(torch.randn(22, 4))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        session.restore(model, optimizer, schedule=schedule)
        for _, (x,) in zip(range(3), session.loader(data, global_batch=8, epochs=3), strict=False):
            train(session, model, optimizer, x, Fate())
            if session.steps == 3:
                with session.scratch():
                    session._heartbeat.words[shared_page.PARK] = 1.0
                    lr_find(session, model, optimizer, data)
        raise AssertionError("it went on")

    policy = CheckpointPolicy(every_steps=100)
    assert attempt(run, 1, policy, asked) is None
    assert (parked, kept(run)) == ([True], [3])
    assert attempt(run, 2, policy, asked) == undisturbed[0]


def test_phases_know_nothing_of_it(tmp_path: Path) -> None:
    def trained(run: Session) -> dict[str, Any]:
        model, optimizer = net()
        with run.phase("one") as one:
            run.restore(model, optimizer)
            with run.scratch(), run.phase("trial"):
                with pytest.raises(InvalidInput, match="within the phase 'trial'"):
                    run.phase("another").__enter__()
                lr_find(run, model, optimizer, TensorDataset(torch.randn(22, 4)))
            for (x,) in run.loader(TensorDataset(torch.randn(12, 4)), global_batch=4, epochs=1):
                train(run, model, optimizer, x, Fate())
            one.record(rate=0.5)
        run.finish()
        return one.results

    assert attempt(tmp_path / "run", 1, POLICY, trained) == {"rate": 0.5}
    (phase,) = checkpoints.read(open_store(str(tmp_path / "run")), 3).phases
    assert (phase.name, phase.steps, phase.from_step) == ("one", 3, 0)


def test_what_a_pass_has_found_is_kept_by_a_note(tmp_path: Path) -> None:
    found = itertools.count(1)

    def noting(run: Session) -> list[Any]:
        model, optimizer = net()
        rate = run.resumed.notes.get("rate") if run.resumed else None
        if rate is None:
            with run.scratch(model, optimizer):
                rate = next(found)
                run.note(rate=rate)
        run.restore(model, optimizer)
        for (x,) in run.loader(TensorDataset(torch.randn(16, 4)), global_batch=4, epochs=1):
            train(run, model, optimizer, x, Fate())
            if run.attempt == 1 and run.steps == 3:
                raise Killed
        return [rate, next(found)]

    assert to_the_end(tmp_path / "run", POLICY, noting) == ([1, 2], 2)


def test_what_cannot_be_within_it_is_said(tmp_path: Path) -> None:
    def refused(run: Session) -> bool:
        with run.scratch():
            with pytest.raises(
                InvalidInput, match=r"called within run\.scratch; allowed: after the training"
            ):
                run.finish()
            with pytest.raises(InvalidInput, match="allowed: one after the other"):
                run.scratch().__enter__()
        with pytest.raises(InvalidInput, match="given a int; allowed: an object with state_dict"):
            run.scratch(3).__enter__()
        assert not run.in_scratch
        return True

    assert attempt(tmp_path / "run", 1, POLICY, refused)


def test_what_a_pass_ends_with_is_told_of_although_something_cannot_be_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("no")

    def failing(run: Session) -> bool:
        model, optimizer = net()
        before, luck = repr(model.state_dict()), torch.get_rng_state()

        def fail(error: type[Exception] | None) -> None:
            with run.scratch(Broken(), model, optimizer):
                lr_find(run, model, optimizer, TensorDataset(torch.randn(22, 4)))
                if error is not None:
                    raise error

        with pytest.raises(RuntimeError, match=r"could not be put back \(Broken: ValueError: no\)"):
            fail(None)
        with pytest.raises(ZeroDivisionError) as found:
            fail(ZeroDivisionError)
        assert "could not be put back (Broken: ValueError: no)" in found.value.__notes__[0]
        assert "could not be put back (Broken: ValueError: no)" in caplog.text
        assert repr(model.state_dict()) == before
        assert torch.equal(torch.get_rng_state(), luck)
        assert not run.in_scratch
        return True

    assert attempt(tmp_path / "run", 1, POLICY, failing)


def test_the_same_objects_are_put_back_in_place() -> None:
    """Whoever holds a parameter or a group of an optimizer holds the same one after it."""
    tied = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(tied, torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    model[2].weight = tied.weight
    model.register_buffer("unsaved", torch.ones(2), persistent=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    before = repr([model.state_dict(), optimizer.state_dict(), tied.weight.grad, model.unsaved])
    held, group = [*model.parameters()], optimizer.param_groups[0]
    back = Rollback([model, optimizer])
    model(torch.rand(4, 3)).square().sum().backward()
    optimizer.step()
    model.unsaved.zero_()
    model[2].weight = torch.nn.Parameter(torch.zeros(3, 3))
    model[0].weight.data = torch.zeros(5, 3)
    back.put_back()
    assert repr([model.state_dict(), optimizer.state_dict(), tied.weight.grad, model.unsaved]) == before
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
    assert optimizer.param_groups[0] is group
    assert model[2].weight is tied.weight


def test_a_sharded_model_is_put_back() -> None:
    """Also where a forward pass has left its whole parameters in it."""
    with process_group():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def stepped() -> None:
            model(torch.rand(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.rand(3, 4))

        def state() -> str:
            model.reshard()
            whole = {name: one.full_tensor() for name, one in model.named_parameters()}
            return repr((whole, optimizer.state_dict()))

        stepped()
        back = Rollback([model, optimizer])
        before = state()
        stepped()
        back.put_back()
        assert state() == before
        stepped()
        assert state() != before
