"""Makes DDP exchange the gradients of parameters that are trained later.

By itself, DDP exchanges only gradients of parameters that were trained when it was made. If layers thaw later, or
adapters are added, each rank would train these alone, without an error. So DDP has to look for its parameters again.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

_is_trained = attrgetter("requires_grad")


def follow(*objects: Any) -> None:
    """From here on each DDP in these models exchanges the gradients of all parameters that are trained at its call.

    All ranks must freeze and thaw the same parameters. Call it again for a model with a new wrapper. A second call for
    the same DDP has no effect.
    """
    for model in objects:
        if not isinstance(model, torch.nn.Module):
            continue
        for outer, one in _found(model, None, set()):
            if not any(isinstance(hook, DDPRenewal) for hook in outer._forward_pre_hooks.values()):
                renewal = DDPRenewal(one)
                outer.register_forward_pre_hook(renewal)
                outer.register_forward_hook(renewal.passes)


def _found(
    module: torch.nn.Module, compiled: torch.nn.Module | None, seen: set[torch.nn.Module]
) -> Iterator[tuple[torch.nn.Module, DistributedDataParallel]]:
    """Each DDP, after the module whose call comes before its own: a module of torch.compile is called as a whole."""
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, DistributedDataParallel):
        yield module if compiled is None else compiled, module
        return
    if any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__):
        compiled = module if compiled is None else compiled
    for one in module.children():
        yield from _found(one, compiled, seen)


class _Pass:
    """A forward pass, which lives as long as its graph: this is a hook of its outputs.

    Attributes:
        went_back: whether its backward pass was done.
    """

    went_back = False

    def __call__(self, gradient: torch.Tensor) -> None:
        self.went_back = True


class ForwardPasses:
    """The forward passes of a module whose backward pass may still come: a hook after each forward pass."""

    def __init__(self) -> None:
        self._begun: list[weakref.ref[_Pass]] = []

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Note a forward pass."""
        found: Any = _find_tensors  # torch gives it no types
        begun = [one for one in found(output) if one.requires_grad] if torch.is_grad_enabled() else []
        if begun:
            own = _Pass()
            for one in begun:
                one.register_hook(own)
            self._begun = [*self._open(), weakref.ref(own)]

    @property
    def are_open(self) -> bool:
        """Whether a backward pass may still come."""
        return any(self._open())

    def _open(self) -> Iterator[weakref.ref[_Pass]]:
        return (each for each in self._begun if (one := each()) is not None and not one.went_back)

    def __reduce__(self) -> Any:
        """A copy of the module has made no forward pass."""
        return ForwardPasses, ()


class DDPRenewal:
    """Keeps a DDP up to date with its trained parameters: a hook before its forward pass.

    Args:
        ddp: its parameters may have changed since it was made.

    Attributes:
        passes: a hook for after its forward pass.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._modules: list[Mapping[str, Any]] = []
        self._parameters: list[Mapping[str, Any]] = []
        self._shape: tuple[int, ...] = ()
        self._held: list[Any] = []
        self._trained: list[bool] = []
        self.passes = ForwardPasses()
        self._has_changed()
        self._now = [*self._exchanged()]
        #: The parameters whose gradients it exchanges; None if it was made for others than there are now.
        self._made_for = self._now if _is_of(ddp, self._now) else None
        self._counts: set[int] = set()

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        """Look for changes. With a thousand layers it takes a fraction of a millisecond."""
        if not torch.is_grad_enabled():
            return
        if self._has_changed():
            self._now = [*self._exchanged()]
        if self._now is self._made_for or not self._is_due():
            return
        renew(self._ddp)
        self._made_for = self._now
        level = logging.DEBUG if len(self._now) in self._counts else logging.INFO
        self._counts.add(len(self._now))  # if parameters are frozen and thawed again and again, log it once
        log.log(
            level,
            "what is trained has changed: DDP exchanges the gradients of %d tensors from here on",
            len(self._now),
        )

    def _is_due(self) -> bool:
        """Whether it exchanges too few gradients, or waits for gradients that never come.

        A model that is frozen as a whole for a while needs no renewal, such as a critic while its generator is trained.
        Nor do parameters that are frozen between a forward and its backward pass: that pass would not be exchanged.
        """
        if self._made_for is None:
            return bool(self._now)
        now, known = {*map(id, self._now)}, {*map(id, self._made_for)}
        if not now or now == known:
            return False
        if now - known:
            return True
        looks_for_unused = self._ddp.find_unused_parameters and not self._ddp.static_graph
        are_all_here = known <= {*map(id, self._ddp.module.parameters())}
        return not (looks_for_unused and are_all_here) and not self.passes.are_open

    def _has_changed(self) -> bool:
        """Whether parameters, or the choice of trained ones, have changed since the last call."""
        now = (*_ids(self._modules), *_ids(self._parameters))
        changed = now != self._shape or not self._modules
        if changed:
            every = [*self._ddp.modules()]
            self._modules = [one._modules for one in every]
            self._parameters = [one._parameters for one in every]
            self._shape = (*_ids(self._modules), *_ids(self._parameters))
            # Hold the objects: after their deletion others could get the same ids.
            self._held = [*every, *(each for one in self._parameters for each in one.values())]
        own = [one for each in self._parameters for one in each.values() if one is not None]
        trained = [*map(_is_trained, own)]
        changed, self._trained = changed or trained != self._trained, trained
        return changed

    def _exchanged(self) -> Iterator[torch.Tensor]:
        own = self._ddp.module.named_parameters()
        return (one for name, one in own if one.requires_grad and name not in self._ddp.parameters_to_ignore)


def _ids(named: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    return map(id, chain.from_iterable(one.values() for one in named))


def _is_of(ddp: DistributedDataParallel, trained: Iterable[torch.Tensor]) -> bool:
    """Whether a DDP was made for these, as far as its log shows: the number of tensors, and their bytes."""
    own, told = [*trained], _told(ddp)
    return told is None or (
        told.ints_map["num_parameter_tensors"] == len(own)
        and told.ints_map["total_parameter_size_bytes"] == sum(one.numel() * one.itemsize for one in own)
    )


def _told(ddp: Any) -> Any:
    """The data of its logger; None if it exchanges all gradients in another way."""
    return None if getattr(ddp, "logger", None) is None else ddp.logger._get_ddp_logging_data()


def renew(ddp: Any) -> None:
    """Make a DDP look for the gradients to exchange, as if it were made now.

    It stays the same object, with the same settings and hooks. All ranks call this together.

    Raises:
        InvalidInput: it exchanges gradients in a way that cannot start again.
    """
    told, hooks = _told(ddp), [*getattr(ddp, "_comm_hooks", ())]
    unknown = told is not None and told.strs_map.get("comm_hook") and not hooks
    if told is None or unknown or getattr(ddp, "_use_python_reducer", False):
        raise InvalidInput(
            "layers were frozen or thawed, or parameters added, since the model was wrapped in DDP. This DDP exchanges "
            "gradients in a special way (a built-in hook, compiled autograd, or delayed), and cannot start again with "
            "it. Wrap the model again after the change, and call run.replace(model=DDP(net))"
        )
    ddp.reducer = ddp.logger = None  # its memory first
    # As torch does where a DDP is unpickled.
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp._module_parameters = [
        one for name, one in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore
    ]
    ddp._has_rebuilt_buckets = False
    ddp._comm_hooks = []
    for hook, state in hooks:
        ddp.register_comm_hook(state, hook)
    if ddp.mixed_precision is not None:
        ddp.reducer._set_mixed_precision_param_dtype(ddp.mixed_precision.param_dtype)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
