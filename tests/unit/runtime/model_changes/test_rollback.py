"""What is put back after a pass that is to leave no trace: whatever was done to it, the same objects as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, parametrize, prune

from airflow_elastic.runtime.model_changes.rollback import Rollback
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group


def layer() -> Any:
    return torch.nn.Linear(4, 4)


def stepped(model: Any, *steppers: Any) -> None:
    model(torch.randn(3, 4)).sum().backward()
    for one in steppers:
        one.step()


def facts(*objects: Any) -> str:
    return repr([one.state_dict() for one in objects])


def test_numbers_of_groups_that_are_tensors() -> None:
    """Schedules write into them."""
    model = layer()
    rate, betas = torch.tensor(0.1), (torch.tensor(0.9), torch.tensor(0.999))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=betas)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    held, before = optimizer.param_groups[0]["lr"], facts(model, optimizer, schedule)
    back = Rollback([model, optimizer, schedule])
    stepped(model, optimizer, schedule)
    betas[0].fill_(0.0)
    assert held != 0.1
    back.put_back()
    assert facts(model, optimizer, schedule) == before
    assert optimizer.param_groups[0]["lr"] is held
    assert optimizer.defaults["lr"] == torch.tensor(0.1)


def to_another_type(model: Any) -> None:
    model.to(torch.bfloat16)


def to_other_memory(model: Any) -> None:
    for one in (*model.parameters(), *model.buffers()):
        one.data = one.data.t().contiguous().t().add(1) if one.dim() == 2 else one.data.add(1)


def to_no_memory(model: Any) -> None:
    model.to("meta")


def from_anew(model: Any) -> None:
    model.to_empty(device="cpu")
    with torch.no_grad():
        for one in (*model.parameters(), *model.buffers()):
            one.fill_(7)


@pytest.mark.parametrize("change", [to_another_type, to_other_memory, to_no_memory, from_anew])
def test_types_devices_and_memory(change: Callable[[Any], None]) -> None:
    model: Any = torch.nn.Sequential(layer(), torch.nn.BatchNorm1d(4))
    stepped(model)
    parameters, grads = [*model.parameters()], [one.grad for one in model.parameters()]
    before, views = facts(model), [one.detach() for one in (*model.parameters(), *model.buffers())]
    told = repr([one.clone() for one in grads])
    back = Rollback([model])
    change(model)
    back.put_back()
    assert facts(model) == before
    assert repr([one.grad for one in model.parameters()]) == told
    now = [*model.parameters(), *model.buffers()]
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert all(one.grad is grad for one, grad in zip(parameters, grads, strict=True))
    assert [one.data_ptr() for one in now] == [one.data_ptr() for one in views]


def test_a_model_without_numbers() -> None:
    with torch.device("meta"):
        model = layer()
    held = [*model.parameters()]
    back = Rollback([model])
    model.to_empty(device="cpu")
    back.put_back()
    assert [one.device.type for one in model.parameters()] == ["meta", "meta"]
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))


def test_a_sharded_model_of_another_type() -> None:
    with process_group():
        model = torch.nn.Sequential(layer(), layer())
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        stepped(model, optimizer)
        model.reshard()
        before = facts(model, optimizer)
        back = Rollback([model, optimizer])
        model.to(torch.bfloat16)
        back.put_back()
        model.reshard()
        assert facts(model, optimizer) == before
        stepped(model, optimizer)
        model.reshard()
        assert facts(model, optimizer) != before


def test_a_layer_without_a_shape_is_refused() -> None:
    """It would stay as the pass has made it."""
    model = torch.nn.Sequential(layer(), torch.nn.LazyLinear(3))
    with pytest.raises(
        InvalidInput, match=r"1 \(LazyLinear\) has no shape yet; allowed: layers with a shape"
    ):
        Rollback([model])
    model(torch.ones(1, 4))
    Rollback([model])


class Averaged:
    """Holds a model, and has its weights in its own state."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["weights"])


class Wrapper(torch.optim.Optimizer):
    """Has a state of its own, and steps by another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__([torch.nn.Parameter(torch.ones(1))], {})


def test_what_is_kept_first_counts() -> None:
    """Also as a part of something that is kept later, when the pass has changed it."""

    class Counting(torch.nn.Linear):
        seen = 0

        def get_extra_state(self) -> int:
            return self.seen

        def set_extra_state(self, state: int) -> None:
            self.seen = state

    model = Counting(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    stepped(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = facts(model, optimizer, schedule)
    back = Rollback([model, optimizer, schedule])
    stepped(model, optimizer, schedule)
    model.eval()
    model.seen = 5
    back.keep(torch.nn.Sequential(model), Wrapper(optimizer), Averaged(model), Averaged(schedule))
    stepped(model, optimizer, schedule)
    back.put_back()
    assert (model.training, model.seen) == (True, 0)
    assert facts(model, optimizer, schedule) == before


def test_memory_that_holds_several_elements_at_one_place() -> None:
    model = layer()
    model.register_buffer("kernel", torch.arange(3.0).reshape(1, 3).expand(5, 3))
    model.register_buffer("windows", torch.arange(5.0).unfold(0, 3, 1))
    held, before = model.kernel, facts(model)
    back = Rollback([model])
    stepped(model)
    model.kernel[0].add_(1)
    model.windows[0].add_(1)
    model.weight.data.add_(1)
    back.put_back()
    assert facts(model) == before
    assert model.kernel is held
    assert held.stride() == (0, 1)


def test_all_else_is_put_back_where_a_part_cannot_be() -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("no")

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = facts(model, optimizer)
    back = Rollback([Broken(), Broken(), model, optimizer])
    stepped(model, optimizer)
    optimizer.param_groups[0]["lr"] = 3.0
    with pytest.raises(RuntimeError, match=r"\(Broken: ValueError: no; Broken: ValueError: no\)"):
        back.put_back()
    assert facts(model, optimizer) == before


def pruned(model: Any) -> None:
    prune.random_unstructured(model, "weight", 0.5)


def normed(model: Any) -> None:
    parametrizations.weight_norm(model)


def spectral(model: Any) -> None:
    torch.nn.utils.spectral_norm(model)


def hooked(model: Any) -> None:
    model.register_forward_hook(lambda *_: torch.zeros(3, 4, requires_grad=True))
    model.register_full_backward_hook(lambda *_: None)
    model.register_state_dict_post_hook(lambda *_: None)
    model.weight.register_hook(lambda grad: grad * 0)
    model.bias.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))


def stripped(model: Any) -> None:
    model._forward_pre_hooks.clear()
    model._backward_hooks.clear()
    model.weight._backward_hooks.clear()


def saved(model: Any) -> None:
    del model.unsaved
    model.register_buffer("unsaved", torch.zeros(2))


@pytest.mark.parametrize("change", [pruned, normed, spectral, hooked, stripped, saved])
def test_what_is_hung_on_a_layer(change: Callable[[Any], None]) -> None:
    model = layer()
    model.register_buffer("unsaved", torch.ones(2), persistent=False)
    model.weight.register_hook(lambda grad: grad * 2)
    model.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    given, kind, weight = torch.rand(3, 4), type(model), model.weight

    def told() -> list[Any]:
        model.zero_grad()
        out = model(given)
        out.sum().backward()
        return [repr(one) for one in (out, weight.grad, model.bias.grad, model.state_dict())]

    before = told()
    back = Rollback([model])
    change(model)
    stepped(model)
    back.put_back()
    assert model.weight is weight
    assert type(model) is kind
    assert told() == before


def test_what_was_hung_on_it_before_and_is_taken_away() -> None:
    model, normed_one, another = layer(), layer(), layer()
    prune.random_unstructured(model, "weight", 0.5)
    parametrizations.weight_norm(normed_one)
    parametrizations.weight_norm(another)
    both = torch.nn.Sequential(model, normed_one, another)
    given = torch.rand(3, 4)
    before, out = facts(both), repr(both(given))
    back = Rollback([both])
    prune.remove(model, "weight")
    parametrize.remove_parametrizations(normed_one, "weight")
    parametrize.register_parametrization(another, "bias", torch.nn.Tanh())
    stepped(both)
    back.put_back()
    assert facts(both) == before
    assert model.weight is not None
    assert repr(both(given)) == out


def removed(optimizer: Any, other: Any) -> None:
    del optimizer.param_groups[0]


def replaced(optimizer: Any, other: Any) -> None:
    optimizer.load_state_dict(other.state_dict())


def shortened(optimizer: Any, other: Any) -> None:
    optimizer.param_groups[0]["params"].pop()
    optimizer.param_groups[1]["own"].append(1)
    optimizer.defaults["lr"] = 9.0


def added(optimizer: Any, other: Any) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.param_groups.reverse()


@pytest.mark.parametrize("change", [removed, replaced, shortened, added])
def test_groups_of_an_optimizer(change: Callable[[Any, Any], None]) -> None:
    def made() -> tuple[Any, Any]:
        models = torch.nn.Sequential(layer(), layer())
        groups = [{"params": one.parameters(), "own": [number]} for number, one in enumerate(models)]
        return models, torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    models, optimizer = made()
    _, other = made()
    stepped(models, optimizer)
    groups, state = optimizer.param_groups, optimizer.state
    before, each = facts(models, optimizer), [*groups]
    back = Rollback([models, optimizer])
    change(optimizer, other)
    stepped(models, optimizer)
    back.put_back()
    assert facts(models, optimizer) == before
    assert optimizer.param_groups is groups
    assert optimizer.state is state
    assert all(one is other for one, other in zip(each, groups, strict=True))
    assert optimizer.defaults["lr"] == 0.1


def test_a_scripted_model() -> None:
    model: Any = torch.nn.Sequential(torch.jit.script(torch.nn.Sequential(layer(), torch.nn.BatchNorm1d(4))))
    before = facts(model)
    back = Rollback([model])
    stepped(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    back.put_back()
    assert facts(model) == before
    assert all(one.training for one in model.modules())
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("unscaled", [True, False])
def test_a_gradient_scaler_in_the_middle_of_a_step(unscaled: bool) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    if unscaled:
        scaler.unscale_(optimizer)
    grad = repr(model.bias.grad)
    back = Rollback([model, optimizer, scaler])
    if unscaled:
        scaler.step(optimizer)
        scaler.update()
    else:
        scaler.unscale_(optimizer)
    back.put_back()
    assert repr(model.bias.grad) == grad
    if not unscaled:
        scaler.unscale_(optimizer)
    before = model.bias.detach().clone()
    scaler.step(optimizer)
    assert torch.equal(model.bias, before - 0.1)
