"""Restore the newest checkpoint that is, byte for byte, the one that was committed.

Each rank compares all bytes that it reads with the checksums in the checkpoint. If any rank finds damage, all ranks go
back to the checkpoint before.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.core.units import size
from airflow_elastic.runtime.checkpoint.format.compatibility import (
    TO_TRAIN,
    check_fit,
    check_given,
    check_groups,
    with_room_for_extra,
)
from airflow_elastic.runtime.checkpoint.format.tensor_split import join_tensors, unpacked
from airflow_elastic.runtime.checkpoint.optimizers.state_allocation import as_read
from airflow_elastic.runtime.checkpoint.optimizers.states_by_name import (
    Saved,
    load_states,
    make_room_for,
    request_states,
    restore_states,
)
from airflow_elastic.runtime.checkpoint.read.fetch_once import FetchOnce
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback, StateLoader, no_progress
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.restore.available import AvailableCheckpoints
from airflow_elastic.runtime.checkpoint.restore.cleanup import cleanup
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.peek import peek
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.checkpoint.save.named_objects import other_key
from airflow_elastic.runtime.checkpoint.save.save import ORDER
from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful, state_of
from airflow_elastic.runtime.checkpoint.tensors.in_place import load
from airflow_elastic.runtime.checkpoint.tensors.lazy_modules import materialise
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.tiers.tiered_files import LocalFiles, ReadableFiles, TieredFiles
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.checkpoints.resumed import Resumed, resumed_from
from airflow_elastic.spec.errors import ElasticError, InvalidInput, StoreError
from airflow_elastic.spec.run import RESTART_ME

log = logging.getLogger(__name__)


class Restorer:
    """Restores one rank of one attempt.

    Args:
        store: where the run is stored.
        ranks: this rank among the others.
        attempt: number of the attempt. Files of unfinished saves of earlier ones are removed.
        room: where this worker can find or keep files of a checkpoint.
        stage: the memory of this worker's agent; None if there is no agent.
        told: called with the bytes that this rank has fetched for its worker and read so far, and all bytes.

    Attributes:
        stock: the checkpoints of the run.
        verified: whether all ranks have read everything from storage, without finding damage.
        relied: whether this rank's script has asked for the facts of the newest checkpoint, or for a state in it.
    """

    verified = relied = False

    def __init__(
        self,
        store: Store,
        ranks: Collectives,
        *,
        attempt: int,
        room: WorkerCache,
        stage: StagingArea | None = None,
        told: ProgressCallback = no_progress,
    ) -> None:
        self._store, self._ranks, self._attempt, self._room = store, ranks, attempt, room
        self._stage, self._told = stage, told
        self._facts: Resumed | None = None
        self._phases: tuple[PhaseRecord, ...] = ()
        self._random_states: dict[str, Any] = {}
        self.stock = AvailableCheckpoints(store, ranks, attempt=attempt, worker=room.worker, told=told)
        self._is_local = store.local_path(layout.STATUS) is not None
        alone = self._is_local or room.procs == 1
        self._fetching = None if alone else FetchOnce(store, ranks, room.procs, room.folder)

    @classmethod
    def of(
        cls,
        surroundings: RankEnvironment,
        ranks: Collectives,
        stage: StagingArea | None,
        told: ProgressCallback,
    ) -> Restorer | None:
        """The restorer for a rank, from its environment; None if there is no run."""
        if not surroundings.run_uri:
            return None
        room = WorkerCache(
            surroundings.restore_folder,
            stage.procs if stage else 1,
            surroundings.disk,
            surroundings.loans,
            surroundings.worker,
            surroundings.processors,
        )
        store = open_store(surroundings.run_uri)
        return cls(store, ranks, attempt=surroundings.attempt, room=room, stage=stage, told=told)

    def restore(self, objects: Stateful, *, random_states: bool = True) -> Manifest | None:
        """Load the newest checkpoint that is whole into `objects`; None if there is none.

        A damaged one is skipped with a warning, and the one before it is used. All ranks call this together.

        Args:
            objects: they get the state.
            random_states: also restore the random number generators; else `restore_random_states` does that later.

        Raises:
            CheckpointDamaged: there are checkpoints, but none of them is whole. `objects` may be filled in part.
            SystemExit: the newest one is damaged, and the script has read its facts. It is set aside; the next attempt
                gets the one before it.
            InvalidInput: the newest one is of another model or of another run. Or it has other groups of parameters, or
                values of types that the script does not trust. Only in these two cases may `objects` have changed. The
                stored files are unchanged.
        """
        with cleanup(self._store, self._attempt) if self._ranks.rank == 0 else contextlib.nullcontext():
            manifest = self._restore(objects)
        if random_states:
            self.restore_random_states()
        return manifest

    def restore_step(self, objects: Stateful, step: int) -> Manifest:
        """Load the checkpoint of this step, and no other one. All ranks call this together.

        `restore_random_states` restores the random number generators after that.

        Raises:
            CheckpointDamaged: it is missing or damaged.
            InvalidInput: as `restore`.
        """
        manifest, indexes = self.stock.open(step)
        self._load(CheckpointReader(manifest, indexes), manifest, objects)
        return manifest

    def read_random_states(self, step: int) -> None:
        """Read only the states of the random number generators after this step, for `restore_random_states`.

        All ranks call this together.

        Raises:
            CheckpointDamaged: the checkpoint is missing or damaged.
        """
        manifest, indexes = self.stock.open(step)
        reader, key = CheckpointReader(manifest, indexes), f"random.{self._ranks.rank}"
        state = {key: self._stored_random_states(reader)}
        if any(damages := self._read(reader.plan(state, {}), LocalFiles())):
            raise CheckpointDamaged(all_of(damages))
        self._random_states = state[key]

    def restore_random_states(self) -> None:
        """Restore this rank's random number generators from the checkpoint that was read last."""
        if self._random_states:
            random_state.restore(self._random_states)

    def _stored_random_states(self, reader: CheckpointReader) -> dict[str, Any]:
        """The states of this rank's generators to read into. Without a stored state, a generator keeps its own."""
        stored = {key.split(".")[2] for key in reader.kinds if key.startswith(f"random.{self._ranks.rank}.")}
        return {name: value for name, value in random_state.capture().items() if name in stored}

    def look(self) -> None:
        """List the checkpoints. All ranks call this together."""
        self.stock.look()
        with contextlib.suppress(ElasticError):  # raised again by `resumed` and `restore`
            newest = self.stock.newest
            if newest is not None:
                self._facts = resumed_from(newest)
                self._phases = newest.phases or (PhaseRecord(steps=newest.step),)

    @property
    def phases(self) -> tuple[PhaseRecord, ...]:
        """The phases in the checkpoint that was the newest at the last `look`; one without a name if it has none."""
        return self._phases

    @property
    def resumed(self) -> Resumed | None:
        """The facts of the checkpoint that will be restored. If it is damaged, this attempt now restores no other one.

        Raises the error of `look`, if there was one.
        """
        self.relied = True
        if self.stock.trouble is not None:
            raise self.stock.trouble
        return self._facts

    def peek(self, name: str, step: int) -> Any:
        """The state of one of the script's objects in the checkpoint of this step; None if it has none of this name.

        All ranks call this together. If the checkpoint is damaged, the next attempt gets the one before.
        Raises as `restore`.
        """
        manifest, indexes = self.stock.open(step)
        try:
            return self._ranks.from_first(
                lambda: peek(CheckpointReader(manifest, indexes), self._store, name)
            )
        except CheckpointDamaged as error:
            if before := [one for one in self.stock.steps if one < step]:
                self._begin_again({step: str(error)}, before[-1])
            raise

    def _restore(self, objects: Stateful) -> Manifest | None:
        stock, damaged = self.stock, {}
        steps, newest = stock.steps, stock.newest
        for step in reversed(steps):
            try:
                manifest, indexes = stock.open(step)
                self._load(CheckpointReader(manifest, indexes), manifest, objects)
            except CheckpointDamaged as error:
                log.warning("checkpoint %d is damaged, trying the one before it: %s", step, error)
                damaged[step] = str(error)
                if newest is not None and step == newest.step and step > steps[0]:
                    self._begin_again(damaged, max(one for one in steps if one < step))
            else:
                if damaged:
                    stock.set_aside(damaged, manifest.step)
                stock.forget()
                return manifest
        if steps:
            why = "; ".join(f"{step}: {damaged[step]}" for step in steps)
            raise CheckpointDamaged(
                f"none of the checkpoints {steps} of {self._store.uri} is whole ({why}). They are unchanged: check "
                "them with `airflow-elastic verify`. To train from the beginning, use another run URI"
            )
        stock.forget()
        return None

    def _begin_again(self, damaged: Mapping[int, str], before: int) -> None:
        """End this attempt if the script has used the facts of the damaged checkpoint.

        Decisions that it has based on them may be wrong. The next attempt gets the facts of the checkpoint before.
        """
        if self._ranks.any(self.relied):
            self.stock.set_aside(damaged, before)
            log.error(
                "checkpoint %d, which the script knows from run.resumed, is damaged and was set aside. This attempt "
                "ends with exit code %d, and run.resumed of the next one has checkpoint %d",
                *(max(damaged), RESTART_ME, before),
            )
            raise SystemExit(RESTART_ME)

    def _load(self, reader: CheckpointReader, manifest: Manifest, objects: Stateful) -> None:
        """Load one checkpoint. All ranks raise CheckpointDamaged together."""
        below = "model."
        own = {key.removeprefix(below): kind for key, kind in reader.kinds.items() if key.startswith(below)}
        materialise(objects.model, own)
        objects.named.materialise(reader)
        former = make_room_for(objects.model, objects.optimizers, reader.kinds)
        try:
            self._fill(reader, manifest, objects)
        except BaseException:
            restore_states(former)
            raise

    def _fill(self, reader: CheckpointReader, manifest: Manifest, objects: Stateful) -> None:
        state, random_key = state_of(objects, self._ranks.rank), f"random.{self._ranks.rank}"
        state[random_key] = self._stored_random_states(reader)
        what = f"checkpoint {manifest.step} of {self._store.uri}"
        others = dict(objects.others)
        if f"{other_key(ORDER)}.rest" not in reader.kinds:  # saved by a release without it
            others.pop(ORDER, None)
            state.pop(other_key(ORDER), None)
        named = objects.named
        for name in others:
            named.make_room(name, state[other_key(name)], reader)
        state["model"] = with_room_for_extra(state["model"], reader.kinds)
        settings = request_states(state["optimizer"], reader.kinds)
        check_fit(state, reader.kinds, what, TO_TRAIN)
        check_groups(state["optimizer"], len(settings), what, TO_TRAIN)
        check_given({*objects.others, *objects.left}, reader.kinds, what)
        at = manifest.generation, manifest.step
        memory = self._stage.memory(*at, reader.confirmed) if self._stage else {}
        nearby = self._room.nearby(manifest, from_disk=not self._is_local)
        damages = self._read(reader.plan(state, memory), nearby)
        if any(damages) and self._ranks.any(bool(memory or nearby)):
            log.warning("%s: reading again, from storage alone", all_of(damages))
            mine = damages[self._ranks.rank]
            damages = self._read(reader.plan(state, {}), LocalFiles())
            if mine is not None and not any(damages):
                self.stock.tell_refused(manifest.step, f"{mine}. It was read from storage instead")
        if any(damages):
            raise CheckpointDamaged(all_of(damages))
        loaded = {name: self._object(name, state[other_key(name)], manifest) for name in others}
        load(objects.model, unpacked(state["model"]))
        if objects.optimizers:
            self._load_optimizers(objects, state["optimizer"], settings, what)
        for name in others:
            named.load(name, loaded[name], what)
        self._random_states = state[random_key]

    def _load_optimizers(
        self, objects: Stateful, state: dict[str, Any], settings: list[Saved], what: str
    ) -> None:
        try:
            with as_read(objects.optimizers):
                load_states(objects.model, objects.optimizers, state, settings)
        except InvalidInput as error:
            raise InvalidInput(f"{what} does not fit: {error}. {TO_TRAIN}") from error

    def _object(self, name: str, parts: Mapping[str, Any], manifest: Manifest) -> Any:
        """The state of one of the script's own objects. Raises InvalidInput if another program wrote it."""
        try:
            return join_tensors(parts["rest"], parts["tensors"])
        except InvalidInput as error:
            raise self._not_ours(manifest, f"its {name!r} {error}") from error

    def _not_ours(self, manifest: Manifest, why: str) -> InvalidInput:
        return InvalidInput(
            f"checkpoint {manifest.step} of {self._store.uri} is whole, but {why}. If another program wrote it, "
            f"remove {layout.manifest(manifest.step)} to go on from the one before. Nothing was changed there"
        )

    def _read(self, loading: StateLoader, nearby: LocalFiles) -> list[str | None]:
        """Read a state. All ranks return the damage that each rank has found, after all have stopped reading."""
        near: ReadableFiles = TieredFiles(self._store, nearby)
        fetched = 0
        if self._fetching is not None:
            near, fetched = self._fetching.fetch(loading, nearby, self._told)
        began = time.monotonic()
        damage: str | None = None
        trouble: ElasticError | None = None
        try:
            try:
                loading.read(
                    near,
                    lambda done, whole: self._told(fetched + done, fetched + whole),
                    self._room.processors,
                )
            except CheckpointDamaged as error:
                damage = str(error)
            except StoreError as error:
                trouble = StoreError(str(error))
            except InvalidInput as error:
                trouble = self._not_ours(loading.manifest, str(error))
            lent = [key for key in nearby.memory if nearby.loan(key)]
            from_disk, from_others = loading.bytes_of(nearby.disk), loading.bytes_of(lent)
            log.info(
                "checkpoint %d was read in %.2f s: %s from this worker's memory, %s from others' memory, "
                "%s from disk, %s from storage",
                *(loading.manifest.step, time.monotonic() - began, size(loading.memory_bytes)),
                *(size(from_others), size(from_disk), size(loading.file_bytes - from_others - from_disk)),
            )
            # Count a neighbour that stopped answering, too: some bytes may be from it.
            elsewhere = loading.memory_bytes + from_disk + loading.bytes_of(nearby.memory)
            # Mostly nothing is wrong, and two flags take a third of the time that a gather takes.
            wrong, nearer = self._ranks.largest(bool(trouble or damage), bool(elsewhere))()
            self.verified = not (wrong or nearer)
            if not wrong:
                return [None] * self._ranks.world_size
            findings = self._ranks.gather((trouble, damage))
            damages = [one for _, one in findings]
            for each, _ in findings:
                if isinstance(each, StoreError) or (each is not None and not any(damages)):
                    raise each
            return damages
        finally:
            if self._fetching is not None:
                self._fetching.clear()


def all_of(damages: Iterable[str | None]) -> str:
    """The damages that ranks have found, each once."""
    return "; ".join(sorted({one for one in damages if one}))
