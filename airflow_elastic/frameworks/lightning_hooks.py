"""Callbacks of Lightning that cannot be part of an elastic run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from airflow_elastic.frameworks import missing
from airflow_elastic.spec.errors import InvalidInput

try:
    from lightning.pytorch import Callback, LightningModule, callbacks
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise missing("lightning", "lightning") from error

log = logging.getLogger(__name__)


def check_hooks(theirs: Iterable[Any], module: LightningModule) -> None:
    """Check callbacks that write into Lightning's checkpoints: a run only saves the result of their `state_dict`.

    Raises:
        InvalidInput: a callback would lose a part of its state.
    """
    averaging = getattr(callbacks, "WeightAveraging", ())
    for one in theirs:
        name = f"{type(one).__name__}.on_save_checkpoint"
        if isinstance(one, averaging):
            raise InvalidInput(
                f"{name} would keep the averaged weights, and is not called: they would be lost with each attempt. "
                "Keep them in a module of your own that is a part of the LightningModule, because that is saved. "
                "An example is torch.optim.swa_utils.AveragedModel(…).requires_grad_(False)"
            )
        if isinstance(one, callbacks.StochasticWeightAveraging) and one.pl_module_contains_batch_norm(module):
            raise InvalidInput(
                "StochasticWeightAveraging: given, with a model that has batch norms; allowed: a model without them. "
                "The callback ends with a pass over the data without steps, which is not part of the run. Keep the "
                "averaged weights in a torch.optim.swa_utils.AveragedModel of your own, and call "
                "torch.optim.swa_utils.update_bn after trainer.fit"
            )
        if isinstance(one, callbacks.GradientAccumulationScheduler):
            raise InvalidInput(
                "GradientAccumulationScheduler: given; allowed: none, because the number of accumulated batches "
                "follows from global_batch. To change global_batch at an epoch, begin another run there"
            )
        if isinstance(one, Callback | LightningModule) and is_overridden("on_save_checkpoint", one):
            log.warning(
                "%s is not called: its data is in no checkpoint of the run. Checkpoints have the state_dict of "
                "callbacks and data modules, and the parameters and buffers of modules",
                name,
            )
