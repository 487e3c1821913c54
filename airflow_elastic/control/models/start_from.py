"""Find what a run starts from, once, before its first attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, journal, promotions
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.control.models.choose import choose
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import CheckpointMissing, InvalidInput, Problem, RunMissing, SpecError
from airflow_elastic.spec.models.start import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.models import Promotion
    from airflow_elastic.spec.models.start import StartFrom

    Opens = Callable[[str], Store]


def resolve(start: StartFrom, opens: Opens) -> Origin | None:
    """The weights to begin with.

    Args:
        start: as the specification says.
        opens: opens the store at a URI.

    Returns:
        None if there are none yet, and `start` is optional.

    Raises:
        CheckpointMissing: the run has no checkpoint of this step.
        InvalidInput: there is no such run, model or file; or the checkpoint cannot be read.
        StoreError: the place cannot be read.
    """
    try:
        if start.is_file:
            return _file(start, opens)
        store = opens(start.source)
        promoted = promotions.current(store)
        return _promoted(start, promoted, store, opens) if promoted is not None else _checkpoint(start, store)
    except RunMissing as error:
        if start.optional:
            return None
        raise InvalidInput(
            f"start_from: {error}. To begin from scratch in this case, set `optional`"
        ) from error
    except SpecError as error:
        raise error.below("start_from") from error
    except CheckpointMissing as error:
        raise CheckpointMissing(f"start_from: {error}") from error
    except InvalidInput as error:
        raise InvalidInput(f"start_from: {error}") from error


def hold(origin: Origin, opens: Opens, *, by: str) -> None:
    """Pin the checkpoint that a run starts from, so that nothing removes it.

    Args:
        origin: what it starts from.
        opens: opens the store at a URI.
        by: URI of the run.

    Raises:
        CheckpointMissing: it was removed meanwhile.
        StoreError: it cannot be pinned.
    """
    if origin.file is None and origin.run is not None and origin.step is not None:
        store = opens(origin.run)
        try:
            checkpoint_retention.pin(store, origin.step, by=holder(by))
        except CheckpointDamaged as error:
            raise CheckpointMissing(f"start_from: {error}") from error


def holder(run: str) -> str:
    """Who pins the checkpoint that a run starts from."""
    return f"run {run}, which starts from it"


def _file(start: StartFrom, opens: Opens) -> Origin:
    folder, _, name = start.source.rpartition("/")
    store = opens(folder or "/")
    if all(entry.key != name for entry in store.list(name)):
        raise RunMissing(f"{start.source}: there is no such file")
    return Origin(start.source, file=start.source)


def _promoted(start: StartFrom, found: Promotion, store: Store, opens: Opens) -> Origin:
    for name in ("step", "best"):
        if (given := getattr(start, name)) is not None:
            allowed = f"only for a run: {store.uri} is a model, and has one promoted checkpoint"
            raise SpecError(Problem(name, given, allowed))
    if start.optimizer:
        try:
            checkpoints.read(opens(found.run), found.step)
        except CheckpointDamaged as error:
            raise InvalidInput(
                f"{error}. Promotion {found.number} of {store.uri} comes from it, and only that checkpoint has the "
                "state of the optimizers: leave `optimizer` out to start from the weights"
            ) from error
        return Origin(start.source, found.run, found.step, promotion=found.number, optimizer=True)
    file, sha256 = f"{store.uri}/{found.weights.key}", found.weights.sha256
    return Origin(start.source, found.run, found.step, file, found.number, sha256)


def _checkpoint(start: StartFrom, store: Store) -> Origin:
    if store.get(layout.journal_entry(0)) is None and not checkpoints.steps(store):
        raise RunMissing(f"{store.uri} holds neither a run nor a promoted model: check the URI")
    manifest = choose(store, start.step, start.best)
    if not journal.is_ours(store)(manifest):
        raise InvalidInput(
            f"checkpoint {manifest.step} in {store.uri} was copied there from run {manifest.run}"
        )
    return Origin(start.source, store.uri, manifest.step, optimizer=start.optimizer)
