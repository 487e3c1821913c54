"""Restoring: the newest checkpoint that is, byte for byte, what was committed.

Every byte is compared with the manifest before anything is opened. Which bytes go where, for another number of ranks
than has saved them too, is torch's distributed checkpoint's to plan.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.checkpoint.state_dict import set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Store
from airflow_elastic.runtime import randomness
from airflow_elastic.runtime.flat_reader import FlatReader, local_files
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.saving import Stateful, state_of
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.manifest import Manifest

log = logging.getLogger(__name__)


@contextmanager
def alone_on_purpose() -> Iterator[None]:
    """Leaves out torch's warning at each save and load of a process without siblings: there need be none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


class Restorer:
    """Restores one rank of one attempt.

    Args:
        store: where the run lies.
        ranks: this rank among the others.
        attempt: number of the attempt: what earlier ones left half-saved is removed.
    """

    def __init__(self, store: Store, ranks: Ranks, *, attempt: int) -> None:
        self._store, self._ranks, self._attempt = store, ranks, attempt

    def restore(self, objects: Stateful) -> Manifest | None:
        """Load the newest checkpoint that is what was committed, into `objects`; None where there is none.

        A damaged one is left aside, with a warning, and the one before it is used. All ranks call this together.

        Raises:
            CheckpointDamaged: there are checkpoints, and not one of them is whole.
        """
        steps = self._ranks.from_first(self._take_stock)
        for step in reversed(steps):
            try:
                manifest = checkpoints.read(self._store, step)
            except CheckpointDamaged as error:
                log.warning("%s; trying the one before it", error)
                continue
            damage = self._verify(manifest)
            if not damage:
                self._load(manifest, objects)
                return manifest
            log.warning("checkpoint %d is damaged, trying the one before it: %s", step, "; ".join(damage))
        if steps:
            raise CheckpointDamaged(
                f"none of the checkpoints {steps} of {self._store.uri} is whole: look with `airflow-elastic verify`; "
                "to train from the beginning, use another run URI"
            )
        return None

    def _take_stock(self) -> list[int]:
        """On rank 0: the steps there are; what earlier attempts left half-saved is removed, as none of them lives."""
        try:
            removed = checkpoints.remove_uncommitted(self._store, self._attempt)
        except StoreError as error:
            log.warning(
                "files of saves that were cut off could not be removed, they only take space: %s", error
            )
        else:
            if removed:
                log.info("removed %d files of saves that were cut off", removed)
        return checkpoints.steps(self._store)

    def _verify(self, manifest: Manifest) -> list[str]:
        """Compare every byte with the manifest; ranks share the files among them."""
        rank, world = self._ranks.rank, self._ranks.world_size
        mine = checkpoints.problems(self._store, manifest, only=lambda i: i % world == rank)
        return [problem for part in self._ranks.gather(mine) for problem in part]

    def _load(self, manifest: Manifest, objects: Stateful) -> None:
        with local_files(self._store, manifest) as folder:
            reader = FlatReader(folder, manifest)
            state = state_of(objects, self._ranks.rank)
            random_key = f"random.{self._ranks.rank}"
            if not any(key.startswith(f"{random_key}.") for key in reader.keys):
                del state[random_key]  # a rank that was not there when this was saved keeps its own seed
            with alone_on_purpose():
                load(state, storage_reader=reader, no_dist=self._ranks.alone)
            set_state_dict(
                objects.model,
                objects.optimizers,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            for name, other in objects.others.items():
                other.load_state_dict(state[f"other.{name}"])
            if random_key in state:
                randomness.put_back(state[random_key])
