"""`run.replace` and `run.peek`, as a script calls them: killed after it, a run ends as undisturbed, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.restore.available import read_indexes
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.runs.attempts import Killed, attempt, to_the_end
from tests.support.training.changing import CHANGED, Grown, Swapped
from tests.support.training.optimizers import equal
from tests.support.training.saving import spoil

END = 7
EACH = CheckpointPolicy(every_steps=1, keep_last=20)
POLICIES = {
    "storage": EACH,
    "memory": CheckpointPolicy(every_steps=3, memory_every_steps=1),
    "overlap": CheckpointPolicy(every_steps=1, overlap=True),
}


def stepped(run: Session, left: set[int]) -> None:
    """A step of the run; killed after each of those that are left, once."""
    run.step()
    if run.steps in left:
        left.remove(run.steps)
        raise Killed


def trained(
    run: Session, net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, left: set[int]
) -> None:
    """The same with what is trained in it."""
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    stepped(run, left)


def swapping(*kills: int, told: list[int] | None = None) -> Callable[[Session], Any]:
    """Adam is followed by two optimizers, at a known step; killed after each of these steps once."""
    left = set(kills)

    def script(run: Session) -> Any:
        training = Swapped()

        def rebuild(resumed: Any) -> Any:
            if resumed.step <= CHANGED:
                return None
            training.change()
            return training.optimizers

        training.changed = lambda: run.replace(*training.optimizers)
        begin = run.restore(training.net, *training.optimizers, rebuild=rebuild)
        if told is not None:
            told.append(begin)
        training.run(begin, END, lambda _: stepped(run, left))
        run.finish()
        return training.state()

    return script


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("kills", [(CHANGED,), (CHANGED + 1,), (END,), (2, CHANGED, CHANGED + 1, END - 1)])
def test_a_swapped_optimizer_goes_on_to_the_bit(
    kills: tuple[int, ...], policy: CheckpointPolicy, tmp_path: Path
) -> None:
    straight = Swapped()
    straight.run(0, END)
    state, attempts = to_the_end(tmp_path / "run", policy, swapping(*kills))
    assert attempts == len(kills) + 1
    assert equal(state, straight.state())


def test_it_goes_on_from_the_step_that_it_was_killed_after(tmp_path: Path) -> None:
    told: list[int] = []
    to_the_end(tmp_path / "run", EACH, swapping(CHANGED, CHANGED + 1, END, told=told))
    assert told == [0, CHANGED, CHANGED + 1, END]


def kinds_of(store: Store, step: int) -> Mapping[str, Any]:
    manifest = checkpoints.read(store, step)
    return CheckpointReader(manifest, read_indexes(store, manifest)).kinds


def test_what_replaces_is_what_is_saved_and_no_more_the_former(tmp_path: Path) -> None:
    attempt(tmp_path / "run", 1, EACH, swapping())
    store = open_store(str(tmp_path / "run"))
    kept = {
        step: {key.rpartition(".")[2] for key in kinds_of(store, step) if ".state." in key}
        for step in (CHANGED, CHANGED + 1)
    }
    assert kept == {CHANGED: {"exp_avg", "exp_avg_sq", "step"}, CHANGED + 1: {"momentum_buffer"}}


def test_a_grown_embedding_with_an_optimizer_of_its_own(tmp_path: Path) -> None:
    """The parameter that was exchanged is known as the model's, and the former one is let go of."""

    class GrownAndSwapped(Grown):
        def change(self) -> None:
            super().change()
            self.optimizers = (torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9),)

    straight = GrownAndSwapped()
    straight.run(0, END)
    left = {CHANGED + 2}

    def script(run: Session) -> Any:
        training = GrownAndSwapped()

        def rebuild(resumed: Any) -> Any:
            if resumed.step > CHANGED:
                training.change()
            return training.optimizers

        training.changed = lambda: run.replace(*training.optimizers)
        training.run(
            run.restore(training.net, *training.optimizers, rebuild=rebuild),
            END,
            lambda _: stepped(run, left),
        )
        run.finish()
        return training.state()

    state, attempts = to_the_end(tmp_path / "run", EACH, script)
    assert attempts == 2
    assert equal(state, straight.state())


def test_in_a_loop_over_epochs(tmp_path: Path) -> None:
    def script(*kills: int) -> Callable[[Session], Any]:
        left = set(kills)

        def run_it(run: Session) -> Any:
            net = nn.Linear(4, 1)
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

            def swapped(resumed: Any = None) -> torch.optim.Optimizer:
                nonlocal optimizer
                if resumed is None or resumed.step > CHANGED:
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
                return optimizer

            data = TensorDataset(torch.randn(16, 4))
            run.restore(net, optimizer, rebuild=swapped)
            for _ in run.epochs(2):
                for (x,) in run.loader(data, global_batch=4):
                    if run.steps == CHANGED:
                        run.replace(swapped())
                    trained(run, net, optimizer, x, left)
            run.finish()
            return net.state_dict(), optimizer.state_dict()

        return run_it

    straight = attempt(tmp_path / "straight", 1, EACH, script())
    state, attempts = to_the_end(tmp_path / "run", EACH, script(CHANGED, CHANGED + 1, 6))
    assert attempts == 4
    assert equal(state, straight)


def anew(form: str, *kills: int) -> Callable[[Session], Any]:
    """A second optimizer of the same kind, made in each attempt that comes to its place: behind the fourth step."""
    left = set(kills)

    def script(run: Session) -> Any:
        net = nn.Linear(4, 1)

        def made(lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)

        optimizer, data = made(0.1), TensorDataset(torch.randn(16, 4))
        if form not in ("restored in each phase", "first in a phase, restored in the one before"):
            run.restore(net, optimizer)

        def step(x: torch.Tensor) -> None:
            trained(run, net, optimizer, x, left)

        def again() -> None:
            nonlocal optimizer
            optimizer = made(0.2)
            run.replace(optimizer)

        match form:
            case "between phases":
                for name in ("first", "second"):
                    with run.phase(name):
                        for (x,) in run.loader(data, global_batch=4, epochs=1):
                            step(x)
                    if name == "first":
                        again()
            case "between phases with loops of their own":
                for name in ("first", "second"):
                    with run.phase(name) as phase:
                        while phase.steps < 4:
                            step(data[phase.steps][0])
                    if name == "first":
                        again()
            case "restored in each phase":
                with run.phase("first"):
                    run.restore(net, optimizer)
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
                    again()
                with run.phase("second"):
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
            case "first in a phase":
                with run.phase("first"):
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
                with run.phase("second"):
                    again()
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
            case "first in a phase with a loop of its own":
                for name in ("first", "second"):
                    with run.phase(name) as phase:
                        if name == "second":
                            again()
                        while phase.steps < 4:
                            step(data[phase.steps][0])
            case "first in a phase, restored in the one before":
                with run.phase("first"):
                    run.restore(net, optimizer)
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
                with run.phase("second"):
                    again()
                    for (x,) in run.loader(data, global_batch=4, epochs=1):
                        step(x)
            case "after restore":
                again()
                for (x,) in run.loader(data, global_batch=4, epochs=2):
                    step(x)
            case "after restore, with a loop of its own":
                again()
                while run.steps < 8:
                    step(data[run.steps][0])
            case "at the top of an epoch":
                for epoch in run.epochs(2):
                    if epoch == 1:
                        again()
                    for (x,) in run.loader(data, global_batch=4):
                        step(x)
            case "at a step, before the loop":
                while run.steps < 8:
                    if run.steps == 4:
                        again()
                    for (x,) in run.loader(data, global_batch=4, epochs=run.steps // 4 + 1):
                        step(x)
        run.finish()
        return net.state_dict(), optimizer.state_dict()

    return script


FORMS = (
    "between phases",
    "between phases with loops of their own",
    "restored in each phase",
    "first in a phase",
    "first in a phase with a loop of its own",
    "first in a phase, restored in the one before",
    "after restore",
    "after restore, with a loop of its own",
    "at the top of an epoch",
    "at a step, before the loop",
)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_made_anew_in_each_attempt_has_what_was_saved_of_it(form: str, tmp_path: Path) -> None:
    straight = attempt(tmp_path / "straight", 1, EACH, anew(form))
    # Where a step is asked for, an attempt that is past it does not come by there: that is `rebuild`'s.
    for kills in ((4,), (2, 4)) if form == "at a step, before the loop" else ((6,), (2, 4, 5, 7, 8)):
        run = tmp_path / "-".join(map(str, kills))
        state, attempts = to_the_end(run, EACH, anew(form, *kills))
        assert attempts == len(kills) + 1
        assert equal(state, straight), f"killed after {kills}"


def swaps(form: str, *kills: int) -> Callable[[Session], Any]:
    """Two swaps, behind the fourth and the eighth step, after which an optimizer of the same kind begins anew."""
    left = set(kills)

    def script(run: Session) -> Any:
        net = nn.Linear(4, 1)
        data = TensorDataset(torch.randn(16, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def made(lr: float) -> torch.optim.Optimizer:
            nonlocal optimizer
            optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
            return optimizer

        def rebuild(resumed: Any) -> torch.optim.Optimizer:
            return optimizer if resumed.step <= 4 else made(0.2 if resumed.step <= 8 else 0.3)

        def step(x: torch.Tensor) -> None:
            trained(run, net, optimizer, x, left)

        run.restore(net, optimizer, rebuild=rebuild)
        match form:
            case "before the loop":
                while run.steps < 12:
                    if run.steps in (4, 8):
                        run.replace(made(0.2 if run.steps == 4 else 0.3))
                    for (x,) in run.loader(data, global_batch=4, epochs=run.steps // 4 + 1):
                        step(x)
            case "a loop of its own":
                while run.steps < 12:
                    if run.steps in (4, 8):
                        run.replace(made(0.2 if run.steps == 4 else 0.3))
                    step(data[run.steps][0])
            case "at the top of epochs":
                for epoch in run.epochs(3):
                    if epoch and run.steps in (4, 8):
                        run.replace(made(0.2 if epoch == 1 else 0.3))
                    for (x,) in run.loader(data, global_batch=4):
                        step(x)
        run.finish()
        return net.state_dict(), optimizer.state_dict()

    return script


@pytest.mark.parametrize("form", ["before the loop", "a loop of its own", "at the top of epochs"])
@pytest.mark.parametrize("kills", [(8,), (4, 8), (6, 8, 10)])
def test_a_second_swap_takes_nothing_of_the_first(form: str, kills: tuple[int, ...], tmp_path: Path) -> None:
    straight = attempt(tmp_path / "straight", 1, EACH, swaps(form))
    state, attempts = to_the_end(tmp_path / "run", EACH, swaps(form, *kills))
    assert attempts == len(kills) + 1
    assert equal(state, straight)


class Pages:
    """An object with a state, and as many items as it likes to have."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Endless(Pages):
    """As a loader of an iterable data set: nobody may ask for its length, nor whether it is true."""

    def __len__(self) -> int:
        raise TypeError("it has no length")


def test_objects_are_replaced_by_their_names_and_others_stay(tmp_path: Path) -> None:
    def begin(run: Session, **more: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run.restore(net, optimizer, **more)
        return net, optimizer

    def script(run: Session) -> bool:
        begin(run, first=Pages(1), second=Pages(2), third=Pages(3))
        run.replace(second=Pages(22), third=None, fourth=Endless(4))
        run.step()
        return True

    assert attempt(tmp_path / "run", 1, EACH, script)
    first, second, fourth = Pages(), Pages(), Endless()

    def again(run: Session) -> Any:
        told = {name: run.peek(name) for name in ("first", "second", "third", "fourth")}
        begin(run, first=first, second=second, fourth=fourth)
        return told

    told = attempt(tmp_path / "run", 2, EACH, again)
    assert told == {"first": {"at": 1}, "second": {"at": 22}, "third": None, "fourth": {"at": 4}}
    assert (first.at, second.at, fourth.at) == (1, 22, 4)


def test_a_model_that_is_wrapped_anew_is_saved_by_the_same_names_and_timed(tmp_path: Path) -> None:
    def script(run: Session) -> Any:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        run.restore(net, optimizer)
        run.step()
        other = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        model = DistributedDataParallel(other)
        run.replace(optimizer, model=model)
        assert run._heartbeat._clock.mean() == 0.0
        model(torch.ones(3, 2)).sum().backward()
        assert run._heartbeat._clock.mean() > 0.0, "how long its part of a step takes, the controller hears"
        optimizer.step()
        run.step()
        return other.state_dict()

    with process_group():
        saved = attempt(tmp_path / "run", 1, EACH, script)

    def again(run: Session) -> Any:
        net = nn.Linear(2, 1)
        assert run.restore(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)) == 2
        return net.state_dict()

    assert saved is not None
    assert equal(attempt(tmp_path / "run", 2, EACH, again), saved)


def test_what_is_copied_beside_training_is_waited_for_and_the_new_one_waits_too(tmp_path: Path) -> None:
    """Else the first step of the new optimizer changes what is being copied, and that state is given up."""
    waits: list[str] = []

    def script(run: Session) -> Any:
        saver = run._saver
        assert saver is not None
        join, settle = saver.join, saver._settle
        saver.join = lambda: (waits.append("join"), join())[1]  # type: ignore[assignment,func-returns-value]
        saver._settle = lambda: (waits.append("settle"), settle())[1]  # type: ignore[assignment,func-returns-value]
        net = nn.Linear(2, 1)
        run.restore(net, torch.optim.SGD(net.parameters(), lr=0.1))
        run.step()
        waits.clear()
        new = torch.optim.AdamW(net.parameters(), lr=0.1)
        run.replace(new)
        net(torch.ones(3, 2)).sum().backward()
        new.step()
        return list(waits)

    assert attempt(tmp_path / "run", 1, POLICIES["overlap"], script) == ["join", "settle"]


def test_the_memory_for_what_has_more_to_keep_is_asked_for_after_the_next_step(tmp_path: Path) -> None:
    def script(run: Session) -> Any:
        saver, told = run._saver, []
        assert saver is not None
        announce = saver.announce
        saver.announce = lambda what: (told.append((run.steps, what.optimizers)), announce(what))[1]  # type: ignore[method-assign,func-returns-value]
        net = nn.Linear(2, 1)
        old = torch.optim.SGD(net.parameters(), lr=0.1)
        new = torch.optim.AdamW(net.parameters(), lr=0.1)
        run.restore(net, old)
        run.step()
        run.step()
        run.replace(new)
        run.step()
        run.step()
        return told == [(1, (old,)), (3, (new,))]

    assert attempt(tmp_path / "run", 1, EACH, script)


def refused(run: Path, script: Callable[[Session], Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        attempt(run, 1, EACH, script)


def test_before_restore_and_with_average_it_is_refused(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def averaging(run: Session) -> None:
        run.restore(net, optimizer)
        run.average(every=2)
        run.replace(optimizer)

    said = r"call run.replace after run.restore\(model, optimizer\), and not with run.average"
    refused(tmp_path / "a", lambda run: run.replace(optimizer), said)
    refused(tmp_path / "b", averaging, said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda net: ((nn.Linear(2, 1),), {}), "given a Linear as an optimizer"),
        (lambda net: ((), {"note": 3}), "note: given a int; allowed: an object with state_dict"),
        (
            lambda net: ((torch.optim.SGD([nn.Parameter(torch.ones(3))]),), {}),
            r"1 parameters that are not the model's, of the shapes \(3,\)",
        ),
        (lambda net: ((torch.optim.LBFGS(net.parameters()),), {}), "an optimizer is LBFGS"),
    ],
)
def test_what_has_no_place_in_a_checkpoint_is_refused_and_the_former_is_saved_on(
    given: Any, said: str, tmp_path: Path
) -> None:
    def script(run: Session) -> bool:
        net = nn.Linear(2, 1)
        run.restore(net, torch.optim.SGD(net.parameters(), lr=0.1))
        optimizers, others = given(net)
        with pytest.raises(InvalidInput, match=said):
            run.replace(*optimizers, **others)
        run.step()
        return True

    assert attempt(tmp_path / "run", 1, EACH, script)
    assert attempt(
        tmp_path / "run",
        2,
        EACH,
        lambda run: run.restore(net := nn.Linear(2, 1), torch.optim.SGD(net.parameters())),
    )


def test_within_a_pass_that_leaves_no_trace_what_replaces_is_put_back_too(tmp_path: Path) -> None:
    def script(run: Session) -> Any:
        net, trial = nn.Linear(2, 1), nn.Linear(2, 1)
        first = torch.optim.SGD(net.parameters(), lr=0.1)
        run.restore(net, first)
        before = trial.weight.detach().clone()
        with run.scratch():
            run.restore(net, first)
            second = torch.optim.SGD(trial.parameters(), lr=0.1)
            run.replace(second, model=trial)
            trial(torch.ones(1, 2)).sum().backward()
            second.step()
            run.step()
        run.step()
        return torch.equal(trial.weight, before), run._objects is not None and run._objects.optimizers == (
            first,
        )

    assert attempt(tmp_path / "run", 1, EACH, script) == (True, True)


def test_peek_gives_what_was_saved_before_anything_is_restored(tmp_path: Path) -> None:
    """How many rows an embedding had, by an object or by the model itself given by a name."""

    def script(run: Session) -> Any:
        peeked = run.peek("rows"), run.peek("vocabulary")
        rows = 6 if peeked[0] is None else peeked[0]["at"]
        net, vocabulary = nn.Linear(2, 1), nn.Embedding(rows, 2)
        optimizer = torch.optim.SGD([*net.parameters()], lr=0.1)
        run.restore(net, optimizer, rows=Pages(rows), vocabulary=vocabulary)
        run.step()
        if run.attempt == 1:
            vocabulary = nn.Embedding(rows + 2, 2)
            run.replace(rows=Pages(rows + 2), vocabulary=vocabulary)
            run.step()
        return peeked, vocabulary.state_dict()

    first = attempt(tmp_path / "run", 1, EACH, script)
    assert first
    assert first[0] == (None, None)
    again = attempt(tmp_path / "run", 2, EACH, script)
    assert again
    (rows, vocabulary), state = again
    assert rows == {"at": 8}
    assert equal(vocabulary, first[1])
    assert equal(state, first[1])


def test_peek_without_a_run_gives_nothing() -> None:
    session = Session(RankEnvironment.read(), total_steps=None, backend=None, timeout=60.0)
    assert session.peek("anything") is None


class Trusted:
    """A type that one script trusts, and another does not."""


def test_peek_refuses_what_is_of_a_type_that_is_not_trusted(tmp_path: Path) -> None:
    class Own(Pages):
        def state_dict(self) -> Any:
            return {"at": Trusted()}

    def script(run: Session) -> bool:
        net = nn.Linear(2, 1)
        run.restore(net, torch.optim.SGD(net.parameters()), own=Own())
        run.step()
        return True

    with torch.serialization.safe_globals([Trusted]):
        assert attempt(tmp_path / "run", 1, EACH, script)
    with pytest.raises(InvalidInput, match=r"test_replacements\.Trusted"):
        attempt(tmp_path / "run", 2, EACH, lambda run: run.peek("own"))


def test_peek_at_what_is_damaged_sets_it_aside_for_the_next_attempt(tmp_path: Path) -> None:
    def script(run: Session) -> bool:
        net = nn.Linear(2, 1)
        run.restore(net, torch.optim.SGD(net.parameters(), lr=0.1), rows=(rows := Pages()))
        for rows.at in (1, 2):
            run.step()
        return True

    run = tmp_path / "run"
    assert attempt(run, 1, EACH, script)
    spoil(run, 2, "remove")
    with pytest.raises(SystemExit) as ended:
        attempt(run, 2, EACH, lambda run: run.peek("rows"))
    assert ended.value.code == 138
    assert attempt(run, 3, EACH, lambda run: (run.steps, run.peek("rows"))) == (1, {"at": 1})
    spoil(run, 1, "remove")
    with pytest.raises(checkpoints.CheckpointDamaged):
        attempt(run, 4, EACH, lambda run: run.peek("rows"))
