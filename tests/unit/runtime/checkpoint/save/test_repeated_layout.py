"""A layout that is used again is the one that would be made anew, whatever has changed since the save before."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import fully_shard

from airflow_elastic.runtime.checkpoint.save import random_state, repeated_layout
from airflow_elastic.runtime.checkpoint.save.layout import Layout
from airflow_elastic.runtime.checkpoint.save.staging import RankPosition
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful, state_of
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.saving import SavingWorker


class History:
    """An object of a script whose state grows."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {"seen": 0}

    def state_dict(self) -> dict[Any, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.values = dict(state)


class Training:
    """A model with a buffer and two optimizers, and everything that a script may do to them between two saves."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)
        )
        self.history = History()
        half = [*self.model[0].parameters()], [*self.model[1:].parameters()]
        self.optimizers = [torch.optim.AdamW(half[0], lr=0.1), torch.optim.SGD(half[1], lr=0.1, momentum=0.9)]
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 2)
        others = {"schedule": self.schedule, "history": self.history}
        self.objects = Stateful(self.model, tuple(self.optimizers), others)
        self.step()

    def step(self) -> None:
        self.model(torch.randn(4, 6)).square().sum().backward()
        for one in self.optimizers:
            one.step()
        self.schedule.step()
        self.history.values["seen"] += 1

    def draw(self) -> None:
        random.random()
        torch.randn(3)
        numpy.random.rand()

    def first(self) -> torch.nn.Parameter:
        return next(self.model.parameters())

    def add_a_parameter(self) -> None:
        self.model.append(torch.nn.Linear(6, 6))
        self.optimizers[1].add_param_group({"params": [*self.model[-1].parameters()], "lr": 0.3})

    def remove_a_parameter(self) -> None:
        if len(self.model) > 3:
            del self.model[-1]

    def other_dtype(self) -> None:
        self.first().data = self.first().data.to(
            torch.float64 if self.first().dtype == torch.float32 else torch.float32
        )

    def other_shape(self) -> None:
        self.first().data = torch.randn(self.first().shape[0] + 1, 6)

    def other_memory(self) -> None:
        for kept in self.optimizers[0].state.values():
            kept["exp_avg"].data = kept["exp_avg"].data.clone()

    def other_strides(self) -> None:
        self.first().data = self.first().data.t().contiguous().t()

    def another_state(self) -> None:
        for kept in self.optimizers[0].state.values():
            kept[f"extra {len(kept)}"] = torch.ones(len(kept))

    def a_number_becomes_a_tensor(self) -> None:
        group = self.optimizers[0].param_groups[0]
        group["lr"] = float(group["lr"]) if torch.is_tensor(group["lr"]) else torch.tensor(group["lr"])

    def no_state(self) -> None:
        self.optimizers[1].state.clear()

    def another_rate(self) -> None:
        self.optimizers[1].param_groups[0]["lr"] *= 0.5

    def tie(self) -> None:
        self.model[2].bias = self.model[0].bias

    def untie(self) -> None:
        self.model[2].bias = torch.nn.Parameter(torch.zeros(6))

    def tie_memory(self) -> None:
        self.model[2].weight.data = self.model[0].weight.data

    def tie_memory_turned(self) -> None:
        self.model[2].weight.data = self.model[0].weight.data.t()

    def a_buffer_in_a_parameter(self) -> None:
        self.model[1].running_mean = self.model[1].weight.data[:]

    def a_buffer_of_its_own(self) -> None:
        self.model[1].running_mean = torch.zeros(6)

    def a_further_buffer(self) -> None:
        self.model.register_buffer("more", torch.zeros(3))

    def grow(self) -> None:
        self.history.values["texts"] = [*self.history.values.get("texts", []), "a text" * 50]

    def keep_a_tensor(self) -> None:
        self.history.values["tensor"] = {"within": [torch.ones(len(self.history.values))]}

    def odd_keys(self) -> None:
        self.history.values[1 if 1 not in self.history.values else True] = numpy.arange(20_000)

    def another_name(self) -> None:
        for kept in self.optimizers[0].state.values():
            kept["renamed" if "exp_avg" in kept else "exp_avg"] = kept.pop(
                "exp_avg" if "exp_avg" in kept else "renamed"
            )

    def exchange(self) -> None:
        both = self.history.values.get("one", 1), self.history.values.get("other", torch.ones(2))
        self.history.values |= {"other": both[0], "one": both[1]}

    def conjugated(self) -> None:
        self.history.values["waves"] = torch.ones(5, dtype=torch.complex64).conj()

    def without_elements(self) -> None:
        self.history.values["several"] = [torch.zeros(0), torch.zeros(0), torch.ones(2)[::2]]


CHANGES = [getattr(Training, name) for name in vars(Training) if not name.startswith("_") and name != "first"]


def same(one: Layout, other: Layout) -> bool:
    """Whether both lead to the same file, and to the same in memory: the latter may be at other places."""
    file = (one.kept, one.kept_bytes) == (other.kept, other.kept_bytes)
    slow = [part.slow for part in one.places.parts] == [part.slow for part in other.places.parts]
    alike = [{name: (each.shape, each.dtype) for name, each in lay.alike.items()} for lay in (one, other)]
    (mine, in_memory), (others, in_others) = filled(one), filled(other)
    return file and slow and alike[0] == alike[1] and mine == others and in_memory == in_others


def filled(layout: Layout) -> tuple[bytes, list[tuple[Any, bytes]]]:
    """The bytes for storage, and all other entries with their bytes."""
    memory = bytearray(layout.total_bytes)
    layout.copy_into(memoryview(memory))
    entries = [each for index in (layout.rest, layout.perhaps) for each in (*index.pieces, *index.blobs)]
    assert all(layout.kept_bytes <= each.at for each in entries)
    found = [(replace(each, at=0), bytes(memory[each.at : each.at + each.size])) for each in entries]
    return bytes(memory[: layout.kept_bytes]), found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(CHANGES), max_size=6),
    st.sampled_from([(0, 1, 1), (0, 2, 1), (1, 2, 1), (3, 4, 2)]),
)
def test_a_layout_used_again_equals_a_new_one(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[Callable[[Training], None]],
    position: tuple[int, int, int],
) -> None:
    training, saver = Training(), SavingWorker(str(tmp_path_factory.mktemp("run"))).saver
    saver._place = RankPosition(*position)
    for change in [Training.draw, *changes, Training.draw]:
        with contextlib.suppress(RuntimeError):  # of torch: a changed tensor no longer fits
            change(training)
        try:
            state = state_of(training.objects, position[0])
        except InvalidInput:  # an optimizer changes a parameter that the model has no more
            return
        parameters = [*training.model.parameters()]
        assert same(saver._layouts.of(state, parameters), saver._lay_out(state, parameters))


def count_of_layouts(saver: Any) -> list[None]:
    made: list[None] = []
    make = saver._layouts.make

    def counted(*arguments: Any) -> Layout:
        made.append(None)
        return make(*arguments)  # type: ignore[no-any-return]

    saver._layouts.make = counted
    return made


def test_what_changes_with_each_step_costs_no_new_layout(tmp_path: Path) -> None:
    training, worker = Training(), SavingWorker(str(tmp_path))
    made = count_of_layouts(worker.saver)
    for _ in range(5):
        training.step()
        training.draw()
        worker.saver._plan(training.objects)
    assert len(made) == 1


def test_shards_keep_their_places_and_other_shards_get_others(tmp_path: Path) -> None:
    with process_group():
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        objects, saver = Stateful(model, (optimizer,), {}), SavingWorker(str(tmp_path)).saver
        made = count_of_layouts(saver)
        for _ in range(3):
            model(torch.randn(2, 6)).sum().backward()
            optimizer.step()
            layout = saver._plan(objects)
            state = state_of(objects, 0)
            assert same(layout, saver._lay_out(state, [*model.parameters()]))
        assert len(made) == 1
        model[0].weight.data = model[0].weight.data * 2.0
        state = state_of(objects, 0)
        parameters = [*model.parameters()]
        assert same(saver._layouts.of(state, parameters), saver._lay_out(state, parameters))


def test_tensors_of_other_kinds_are_laid_out_anew(tmp_path: Path) -> None:
    class Own(torch.Tensor):
        pass

    training, saver = Training(), SavingWorker(str(tmp_path)).saver
    training.history.values["own"] = torch.ones(3).as_subclass(Own)
    made = count_of_layouts(saver)
    for _ in range(3):
        saver._plan(training.objects)
    assert len(made) == 3


def test_bytes_of_unchanging_values_alone_are_kept() -> None:
    kept = repeated_layout._kept
    assert [kept(value) for value in (1, 0.5, "a", None, True, (0.9, 0.99))] == [
        1,
        0.5,
        "a",
        None,
        True,
        (0.9, 0.99),
    ]
    for value in ([1], {"a": 1}, (1, [2]), numpy.ones(1), random_state):
        assert kept(value) is repeated_layout._CHANGING
