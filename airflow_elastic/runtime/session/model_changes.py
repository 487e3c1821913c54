"""The part of a session for models and optimizers that change their shape during training."""

from __future__ import annotations

from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.save.per_rank_state import per_rank_if_needed
from airflow_elastic.runtime.checkpoint.save.save import Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.model_changes.rebuild import replaced
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.spec.errors import InvalidInput


class ModelChanges:
    """Methods with which a script exchanges its objects, and looks into a checkpoint before `restore`."""

    _announced: bool
    _averaging: LocalSGD | None
    _resume: Resume
    _objects: Stateful | None
    _ranks: Collectives
    _saver: Saver | None
    _heartbeat: Heartbeat

    def replace(
        self, *optimizers: torch.optim.Optimizer, model: torch.nn.Module | None = None, **others: Any
    ) -> None:
        """From here on, save these objects instead of those that `restore` was given. For example a new optimizer.

        All ranks call this together, between two steps. Objects that change in place need no call. A restart calls
        `restore` again: pass it the new objects then, or return them from `rebuild`.

        Call it before the first step, between two phases, in the first line of a phase, or at the top of an epoch. Then
        a restart calls it again, and the saved state is loaded into the new object. A restart from a later step does
        not reach a call at one certain step: there, `rebuild` must return the new optimizer.

        Args:
            optimizers: all optimizers from now on. Default: the former ones.
            model: the new model, for example with another wrapper. Default: the former one.
            others: new objects, or replacements for those of the same name. None removes an object.

        Raises:
            InvalidInput: called before `restore`, or with `average`; or as `restore`.
        """
        if self._objects is None or self._averaging is not None:
            raise InvalidInput(
                "call run.replace after run.restore(model, optimizer), and not with run.average. Before run.restore, "
                "pass it the new objects, or rebuild=fn"
            )
        if self._saver is not None:
            self._saver.join()  # a copy of the former objects may still be under way
        new = {
            name: None if one is None else per_rank_if_needed(one, self._ranks)
            for name, one in others.items()
        }
        objects = replaced(self._objects, model, optimizers, new)
        self._resume.replaced(objects)
        self._objects = objects
        if model is not None:
            self._heartbeat.listen(model)
        if self._saver is not None:
            self._saver.attend(self._objects.stepping)
        self._announced = False  # the new objects may need more memory

    def peek(self, name: str) -> Any:
        """The state of the object with this name, in the checkpoint that `restore` will load.

        For a script that builds its model from it: which layers were pruned, or how many rows an embedding had. All
        ranks call this together. The names of a further model do not have the prefix of its wrapper. The state of its
        optimizer is below `named`, by the names of parameters.

        Returns:
            What its `state_dict()` returned; None if there is no checkpoint, or no such object in it.

        Raises:
            InvalidInput: the state has a value of a type that is not trusted.
            SystemExit: the checkpoint is damaged. It is set aside, and the next attempt gets the one before it.
        """
        return self._resume.peek(name)
