"""States that few models have come back as they were, too."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind, with_room_for_extra
from airflow_elastic.runtime.checkpoint.format.tensor_split import join_tensors, split_tensors
from airflow_elastic.runtime.checkpoint.format.values import from_bytes, to_bytes
from airflow_elastic.runtime.checkpoint.read.read_plan import StoredEntry, plan_reads
from airflow_elastic.runtime.checkpoint.save.replica_check import _some_values
from airflow_elastic.runtime.checkpoint.save.staging import RankPosition, lay_out
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.checkpoint.tensors.sharding import offsets_of
from airflow_elastic.spec.checkpoints.index import Blob, TensorChunk
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.fake_ranks import as_ranks
from tests.support.training.saving import SavingWorker, restorer, save


def cut_by_both(rows: int, dp: int, tp: int) -> tuple[list[int], tuple[int, ...]]:
    """The rows that a rank has of a parameter, and where we believe that they begin."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    layer = torch.nn.Linear(1, rows, bias=False)
    numbers = torch.arange(float(rows)).unsqueeze(1)
    layer.weight = torch.nn.Parameter(distribute_tensor(numbers, mesh["tp"], [Shard(0)], src_data_rank=None))
    fully_shard(layer, mesh=mesh["dp"])
    assert isinstance(layer.weight, DTensor)
    return layer.weight.to_local().flatten().int().tolist(), offsets_of(layer.weight)


@pytest.mark.siblings
@pytest.mark.parametrize(("rows", "dp", "tp"), [(50257, 4, 2), (13, 3, 3), (5, 4, 2)])
def test_what_is_cut_unevenly_is_known_by_where_it_lies(rows: int, dp: int, tp: int) -> None:
    """A vocabulary that tensor parallelism cannot cut evenly, for example."""
    found: list[int] = []
    for local, offsets in as_ranks(dp * tp, cut_by_both, rows, dp, tp):
        found += local
        if local:
            assert local == list(range(offsets[0], offsets[0] + len(local)))
            assert offsets[1:] == (0,)
    assert sorted(found) == list(range(rows))


def with_an_empty_one() -> list[str]:
    """What a rank writes of a module that has a parameter without elements."""
    module = torch.nn.Module()
    module.empty = torch.nn.Parameter(torch.zeros(0, 3))
    module.line = torch.nn.Linear(4, 4)
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    place = RankPosition(dist.get_rank(), 2, 1)
    layout = lay_out({"model": dict(module.named_parameters())}, place, own="random.9")
    return [piece.key for piece in layout.kept.pieces]


def test_a_sharded_parameter_without_elements_is_there_once() -> None:
    first, second = as_ranks(2, with_an_empty_one)
    assert sorted(first) == ["model.empty", "model.line.bias", "model.line.weight"]
    assert sorted(second) == ["model.line.bias", "model.line.weight"]


class Deep(torch.optim.SGD):
    """Keeps tensors of its own dtype in lists and dicts, and values under numbers."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter]
                count = kept.get("plan", {0: 0})[0] + 1
                fine = torch.full(parameter.shape, 1.001 * count, dtype=torch.float32)
                kept |= {"GG": [fine, {"deeper": fine + 1}], "plan": {0: count, 100: 2.5}}


def coarse(kind: Any = Deep, **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    return model, kind(model.parameters(), lr=0.1, **options)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def equal(one: Any, other: Any) -> bool:
    if torch.is_tensor(one):
        return torch.is_tensor(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_what_an_optimizer_keeps_in_lists_and_dicts_stays_what_it_is(tmp_path: Path) -> None:
    model, optimizer = coarse()
    train(model, optimizer, 3)
    save(tmp_path, 3, Stateful(model, (optimizer,), {}))
    again, loaded = coarse()
    train(again, loaded, 1)
    assert restorer(tmp_path).restore(Stateful(again, (loaded,), {})) is not None
    assert equal(loaded.state_dict()["state"], optimizer.state_dict()["state"])


def test_an_optimizer_that_is_given_by_name_keeps_its_dtypes(tmp_path: Path) -> None:
    model, optimizer = coarse(torch.optim.NAdam)
    train(model, optimizer, 3)
    save(tmp_path, 3, Stateful(model, (), {"own": optimizer}))
    again, loaded = coarse(torch.optim.NAdam)
    assert restorer(tmp_path).restore(Stateful(again, (), {"own": loaded})) is not None
    assert equal(loaded.state_dict()["state"], optimizer.state_dict()["state"])


class Looking(torch.optim.Optimizer):
    """Around another one, with states in a list."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        self.base = torch.optim.Adam(parameters, **options)
        super().__init__([one for group in self.base.param_groups for one in group["params"]], {})

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)

    def state_dict(self) -> dict[str, Any]:
        base = self.base.state_dict()
        return {"state": [*base["state"].values()], "param_groups": [base["param_groups"]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (groups,) = state["param_groups"]
        self.base.load_state_dict({"state": dict(enumerate(state["state"])), "param_groups": groups})


def test_an_optimizer_that_is_given_by_name_may_have_a_way_of_its_own_to_load(tmp_path: Path) -> None:
    model, optimizer = coarse(Looking)
    train(model, optimizer, 3)
    save(tmp_path, 3, Stateful(model, (), {"own": optimizer}))
    again, loaded = coarse(Looking)
    assert restorer(tmp_path).restore(Stateful(again, (), {"own": loaded})) is not None
    assert equal(loaded.state_dict()["state"], optimizer.state_dict()["state"])


def test_what_a_hook_makes_of_an_optimizers_state_stays(tmp_path: Path) -> None:
    def fine(optimizer: torch.optim.Optimizer) -> None:
        for kept in optimizer.state.values():
            kept["momentum_buffer"] = kept["momentum_buffer"].double()

    def hooked() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model, optimizer = coarse(torch.optim.SGD, momentum=0.9)
        optimizer.register_load_state_dict_post_hook(fine)
        return model, optimizer

    model, optimizer = hooked()
    train(model, optimizer, 1)
    save(tmp_path, 1, Stateful(model, (), {"own": optimizer}))
    again, loaded = hooked()
    assert restorer(tmp_path).restore(Stateful(again, (), {"own": loaded})) is not None
    assert {kept["momentum_buffer"].dtype for kept in loaded.state.values()} == {torch.float64}


def test_values_under_numbers_go_where_they_were() -> None:
    state = {"optimizer": {"plan": {0: "new", "1": "new", 2: {3: "new"}}}}
    stored = {
        f"optimizer.plan.{name}": [StoredEntry("file", Blob(f"optimizer.plan.{name}", 0, 1, ()), 1)]
        for name in ("0", "1", "2.3")
    }
    for need in plan_reads(state, stored):
        assert callable(need.room)
        need.room("old")
    assert state == {"optimizer": {"plan": {0: "old", "1": "old", 2: {3: "old"}}}}


def test_tensors_under_keys_that_are_written_alike_are_told_apart() -> None:
    state = {
        1: torch.ones(1),
        "1": torch.zeros(1),
        "a/b": torch.full((1,), 2.0),
        "a": {"b": torch.full((1,), 3.0)},
    }
    rest, tensors = split_tensors(state)
    assert equal(join_tensors(rest, tensors), state)


ROWS = 40_000

KINDS = ["float32", "float64", "int64", "uint8", "uint16", "bool", "complex64", "float16"]


@pytest.mark.parametrize("kind", KINDS)
def test_large_arrays_are_kept_as_tensors_of_the_same_memory(kind: str) -> None:
    array = (np.arange(3 * ROWS) % 7).astype(kind).reshape(3, ROWS)
    rest, tensors = split_tensors({"buffer": [array], "a": np.arange(5)})
    (tensor,) = tensors.values()
    assert tensor.data_ptr() == array.ctypes.data
    assert len(to_bytes("rest", rest)) < 1000
    found = join_tensors(from_bytes("rest", to_bytes("rest", rest)), tensors)
    assert found["buffer"][0].dtype == array.dtype
    assert np.array_equal(found["buffer"][0], array)
    assert np.array_equal(found["a"], np.arange(5))


def read_only() -> Any:
    array = np.zeros(ROWS)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.random.default_rng(0).random((300, 300))),
        np.zeros(2 * ROWS)[::2],
        np.zeros(2 * ROWS)[::-1],
        read_only(),
        np.zeros(ROWS, dtype=">f8"),
        np.zeros(ROWS, dtype="datetime64[s]"),
        np.zeros(ROWS, dtype="longdouble"),
        np.array(["word"] * ROWS),
    ],
)
def test_arrays_that_would_not_come_back_as_they_were_are_pickled(array: Any) -> None:
    rest, tensors = split_tensors({"buffer": array})
    assert not tensors
    found = join_tensors(from_bytes("rest", to_bytes("rest", rest)), tensors)["buffer"]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


class Replay:
    """What a training has seen, as reinforcement learning keeps it; its state is what it has, not a copy."""

    def __init__(self, fill: float) -> None:
        self.seen, self.lately = np.full((ROWS, 4), fill), np.full(5, fill)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "lately": self.lately}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.lately = state["seen"], state["lately"]


def test_arrays_of_an_object_come_back_and_those_it_had_are_left_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    worker = save(tmp_path, 3, Stateful(model, (), {"replay": Replay(3.0)}))
    replay = Replay(0.0)
    had = replay.seen
    assert restorer(tmp_path).restore(Stateful(model, (), {"replay": replay})) is not None
    assert (replay.seen.dtype, replay.seen.shape) == (had.dtype, had.shape)
    assert (replay.seen == 3.0).all()
    assert (replay.lately == 3.0).all()
    assert (had == 0.0).all(), "what somebody else may have was written over"
    replay.seen[0, 0] = 1.0  # as any other
    (slot,) = (slot for slot in worker.stage._slots if slot.age)
    note = slot.note()
    assert note is not None
    assert max(blob.size for blob in note.kept.blobs) < 20_000


def test_a_buffer_that_is_conjugated_when_it_is_read_comes_back(tmp_path: Path) -> None:
    def model(value: complex) -> torch.nn.Module:
        made = torch.nn.Linear(1, 1)
        made.register_buffer("phase", torch.full((5,), value).conj())
        return made

    saved, loaded = model(1 + 2j), model(0j)
    save(tmp_path, 1, Stateful(saved, (), {}))
    assert restorer(tmp_path).restore(Stateful(loaded, (), {})) is not None
    assert torch.equal(
        torch.view_as_real(loaded.phase.resolve_conj()), torch.view_as_real(saved.phase.resolve_conj())
    )


def test_of_the_smallest_dtypes_some_values_are_compared() -> None:
    small = torch.arange(600, dtype=torch.int32).to(torch.uint8).view(torch.float4_e2m1fn_x2)
    assert len(_some_values(small)) == len(_some_values(small.view(torch.uint8))) > 1


class Scaled(torch.nn.Linear):
    """Keeps what it has seen, as a tensor that grows: so Transformer Engine does with its scales of fp8."""

    seen = torch.arange(0)

    def get_extra_state(self) -> torch.Tensor:
        return self.seen

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.seen = state


def scaled(seen: int) -> Stateful:
    model = Scaled(2, 2)
    model.seen = torch.arange(seen)
    return Stateful(model, (), {})


def test_extra_state_may_be_a_tensor_that_grows(tmp_path: Path) -> None:
    """What a new module says before its first forward is of another size, and no word of another model."""
    run = str(tmp_path / "run")
    save(Path(run), 5, scaled(7))
    weights = tmp_path / "weights.pt"
    elastic.export_weights(run, weights)
    found = [scaled(0) for _ in range(3)]
    restorer(Path(run)).restore(found[0])
    elastic.load_model(run, found[1].model)
    elastic.load_weights(weights, found[2].model)
    assert all(torch.equal(one.model.state_dict()["_extra_state"], torch.arange(7)) for one in found)


def test_extra_state_is_the_first_ranks_and_changes_at_any_time(tmp_path: Path) -> None:
    """As buffers are: the scales of ranks may differ, and each forward pass has others."""
    plans = [SavingWorker(str(tmp_path), index=rank, of=2).saver._plan(scaled(7)) for rank in range(2)]
    whose = [[one.key for one in plan.kept.pieces if "extra" in one.key] for plan in plans]
    assert whose == [["model._extra_state"], []]
    assert [one.key for one in plans[1].perhaps.pieces] == ["model._extra_state"]
    assert all("extra" not in part.key for plan in plans for part in plan.places.parts if part.slow)


def addend(rank: int, folder: str) -> tuple[list[float], int, list[float]]:
    """What a rank keeps of a sum of which each has an addend; for how much of it it asks; and what it has then."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    norm = DTensor.from_local(torch.tensor([1.0 + rank]), mesh, [Partial()])
    layout = lay_out({"optimizer": {"norm": norm}}, RankPosition(rank, 2, 1), own="random")
    piece = TensorChunk("optimizer.norm", "float32", (1,), (0,), (1,), 0, 4, ())
    needs = plan_reads({"optimizer": {"norm": norm}}, {"optimizer.norm": [StoredEntry("file", piece, 1)]})
    for need in needs:
        assert isinstance(need.target, torch.Tensor)
        need.target.fill_(3.0)
    found = (
        [one.item() for one in layout.tensors[: len(layout.kept.pieces)]],
        len(needs),
        norm.full_tensor().tolist(),
    )
    dist.destroy_process_group()
    return found


def test_of_what_is_still_to_be_summed_the_sum_is_kept(tmp_path: Path) -> None:
    """Some optimizers keep a norm of each sharded parameter so."""
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        found = pool.starmap(addend, [(rank, str(tmp_path)) for rank in range(2)], chunksize=1)
    assert found == [([3.0], 1, [3.0]), ([], 0, [3.0])]


def test_extra_state_that_is_like_what_is_stored_keeps_its_place() -> None:
    here, there = torch.zeros(3), torch.empty(2, device="meta")
    model = {"a._extra_state": here, "b._extra_state": there}
    kinds = {f"model.{name}": TensorKind((3,), torch.float32) for name in model}
    found = with_room_for_extra(model, kinds)
    assert found["a._extra_state"] is here
    assert (found["b._extra_state"].device.type, found["b._extra_state"].shape) == ("meta", (3,))


class Quantised(torch.Tensor):
    """Stands for what it is made of."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "codes",
    [
        Quantised(torch.zeros(3, dtype=torch.uint8)),
        # To copy this one as numbers ends the process.
        torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
    ],
)
def test_a_tensor_that_stands_for_others_is_refused(codes: Any) -> None:
    """What came back was none of its kind."""
    for use in (
        lambda: lay_out({"optimizer": {"m": codes}}, RankPosition(0, 1, 1), own="random"),
        lambda: plan_reads(
            {"optimizer": {"m": codes}},
            {"optimizer.m": [StoredEntry("file", Blob("optimizer.m", 0, 1, ()), 1)]},
        ),
    ):
        with pytest.raises(
            InvalidInput, match=r"optimizer\.m is a (Quantised|Tensor), which is made of other tensors"
        ):
            use()
