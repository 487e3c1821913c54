"""The part of a session that knows of models and optimizers whose shape changes while they are trained."""

from __future__ import annotations

from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.save.per_rank_state import per_rank_if_needed
from airflow_elastic.runtime.checkpoint.save.save import Saver, Stateful
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.model_changes.rebuild import replaced
from airflow_elastic.runtime.session.heartbeat import Heartbeat
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.spec.errors import InvalidInput


class ModelChanges:
    """What a script says of its objects, beside `restore`."""

    _announced: bool
    _averaging: LocalSGD | None
    _going_on: Resume
    _objects: Stateful | None
    _ranks: Collectives
    _saver: Saver | None
    _voice: Heartbeat

    def replace(
        self, *optimizers: torch.optim.Optimizer, model: torch.nn.Module | None = None, **others: Any
    ) -> None:
        """Have these be what is saved from here on, in place of what `restore` was given: an optimizer is swapped.

        All ranks call this together, between two steps. What changes in place need not be told. A restart comes to
        `restore` again: have that be given the new ones then, or return them from `rebuild`.

        Call it before the first step, between two phases, in the first line of a phase, or at the top of an epoch. Then
        a restart calls it again, and the saved state is loaded into the new object. A restart from a later step does
        not reach a call at one certain step: there, `rebuild` must return the new optimizer.

        Args:
            optimizers: all there are now. Default: those that there were.
            model: wrapped anew, for example. Default: the one that there was.
            others: objects that are new, or in place of those of the same name; None: there is none any more.

        Raises:
            InvalidInput: before `restore`, or with `average`; or as `restore`.
        """
        if self._objects is None or self._averaging is not None:
            raise InvalidInput(
                "call run.replace after run.restore(model, optimizer), and not with run.average: before it, give "
                "run.restore the new ones, or rebuild=fn"
            )
        if self._saver is not None:
            self._saver.join()  # what is copied beside training is of those before
        told = {
            name: None if one is None else per_rank_if_needed(one, self._ranks)
            for name, one in others.items()
        }
        objects = replaced(self._objects, model, optimizers, told)
        self._going_on.replaced(objects)
        self._objects = objects
        if model is not None:
            self._voice.listen(model)
        if self._saver is not None:
            self._saver.attend(self._objects.stepping)
        self._announced = False  # they may take more memory

    def peek(self, name: str) -> Any:
        """The state that an object of this name has in the checkpoint which `restore` is going to load.

        For what a script builds before it restores: which layers were pruned, or how many rows an embedding had. All
        ranks call this together. Names of a further model come without those of its wrapper. The state of its optimizer
        is below `named`, by the names of parameters.

        Returns:
            What its `state_dict()` returned; None where there is no checkpoint, or no such object in it.

        Raises:
            InvalidInput: there is a value in it of a type that is not trusted.
            SystemExit: it is damaged: the checkpoint is set aside, and the next attempt is told of the one before.
        """
        return self._going_on.peek(name)
