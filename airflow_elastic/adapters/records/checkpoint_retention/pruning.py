"""Checkpoints are removed (pruned). Also files without a commit."""

from __future__ import annotations

import contextlib
import time
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints, journal
from airflow_elastic.adapters.records.checkpoint_retention.pins import claim, claimed, is_claim, pinned
from airflow_elastic.adapters.records.checkpoint_retention.quarantine import data_of, quarantine_records
from airflow_elastic.adapters.records.checkpoint_retention.readings import verified
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged, OtherVersion
from airflow_elastic.core.checkpoints.retention import to_remove
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.adapters.storage.store import Entry, Store
    from airflow_elastic.spec.checkpoint import CheckpointPolicy
    from airflow_elastic.spec.checkpoints.manifest import Manifest


#: The age, in seconds, after which the claim of a removal may be taken over. A removal takes only a few requests.
_CLAIM_SECONDS = 3600.0


def own_steps(store: Store, after: int) -> list[int]:
    """The steps after this one that the run itself has saved, oldest first. Copied ones of other runs are left out.

    Checkpoints of other releases count as the run's own. Invalid manifests do not count.
    """
    newer = [step for step in checkpoints.steps(store) if step > after]
    if not newer:
        return []
    is_ours = journal.is_ours(store)

    def is_own(step: int) -> bool:
        try:
            return is_ours(checkpoints.read(store, step))
        except CheckpointDamaged as error:
            return isinstance(error, OtherVersion)

    return list(filter(is_own, newer))


def to_prune(store: Store, policy: CheckpointPolicy, also: Iterable[int] = ()) -> list[int]:
    """The steps whose checkpoints the policy does not keep, oldest first; the last verified one stays.

    Checkpoints that cannot be read do not count, and stay: another release may read them. So do those of other runs,
    and the steps in `also`.

    Raises:
        CheckpointDamaged: none of those to keep has all its files, so that nothing would be left to restore.
    """
    there = checkpoints.steps(store)
    if len(there) <= policy.keep_last:
        return []
    is_ours = journal.is_ours(store)

    @cache
    def manifest(step: int) -> Manifest | None:
        try:
            found = checkpoints.read(store, step)
        except CheckpointDamaged:
            return None
        return found if is_ours(found) else None

    if policy.keep_best is not None:
        saved = {step: found.metrics for step in there if (found := manifest(step))}
    else:  # there may be a thousand: only the newest ones and the ones to remove are read
        newest = list(islice(filter(manifest, reversed(there)), policy.keep_last))
        saved = {step: {} for step in there if step in newest or (newest and step < newest[-1])}
    known, latest = verified(store), next(filter(None, map(manifest, reversed(there))), None)
    # Later phases need the last checkpoints of the complete ones.
    ends = [one.to_step for one in latest.phases if one.complete] if latest else []
    pins = [*pinned(store), *([] if known is None else [known]), *ends, *also]
    removed = to_remove(saved, policy, pins)
    # The checkpoint that stays for an interval must be readable.
    while unread := [step for step in _stand_ins(removed, saved, policy) if manifest(step) is None]:
        saved = {step: metrics for step, metrics in saved.items() if step not in unread}
        removed = to_remove(saved, policy, pins)
    removed = [step for step in removed if manifest(step)]
    kept = sorted(saved.keys() - {*removed})
    newest_first = filter(None, map(manifest, reversed(kept)))
    if removed and not any(checkpoints.is_complete(store, one) for one in newest_first):
        steps = ", ".join(map(str, kept))
        raise CheckpointDamaged(f"{store.uri}: nothing was removed, as what would stay ({steps}) is damaged")
    return removed


def without_best(store: Store, policy: CheckpointPolicy) -> str | None:
    """A sentence for the case that no checkpoint has the metric of `keep_best`; None otherwise."""
    if policy.keep_best is None:
        return None
    name = policy.keep_best.split()[1]
    known = {metric for manifest in checkpoints.readable(store) for metric in manifest.metrics}
    if name in known:
        return None
    told = f"they have {', '.join(sorted(known))}" if known else "they have none"
    return (
        f"old checkpoints are removed, and none has a value of {name!r}, which chooses the best one "
        f"(checkpoint.keep_best); {told}. Give it to `run.step`, or name another one"
    )


def _stand_ins(removed: Iterable[int], saved: Iterable[int], policy: CheckpointPolicy) -> list[int]:
    """The checkpoints that stay for removed ones of the same `keep_every_steps`."""
    if policy.keep_every_steps is None:
        return []
    intervals = {step // policy.keep_every_steps for step in removed}
    gone = set(removed)
    return [step for step in saved if step // policy.keep_every_steps in intervals and step not in gone]


def prune(store: Store, policy: CheckpointPolicy, also: Iterable[int] = ()) -> list[int]:
    """Remove the checkpoints that neither the policy nor `also` keeps; returns their steps. Manifests are removed
    first.

    Damaged ones that were set aside are removed when `keep_last` newer ones are there. Interrupted removals are
    finished.

    Files without a manifest stay: `remove_uncommitted` is called when no process can be writing them.

    Raises:
        CheckpointDamaged: as `to_prune`; nothing was removed.
    """
    removed = to_prune(store, policy, also)
    _go_on(store)
    if not removed:
        return []
    oldest = checkpoints.steps(store)[-policy.keep_last :][0]
    for step, record in quarantine_records(store):
        if step < oldest:
            files = [entry.key for entry in store.list(data)] if (data := data_of(step, record)) else []
            store.delete([*files, layout.uses(step), layout.quarantined(step)])
    return [step for step in removed if _remove(store, step)]


def _remove(store: Store, step: int) -> bool:
    """Remove a checkpoint, unless it has been pinned since. A process that is killed here leaves its claim."""
    key, data = layout.pin(step), _folder(store, step)
    if data is None:  # another process has removed it meanwhile
        return True
    try:
        mine, full = store.create(key, claim(data)) or is_claim(store.get(key)), False
    except StoreFull:  # to free space must not need any
        mine, full = True, True
    if not mine:
        return False
    # The step was saved again meanwhile; or it was read back, and must stay.
    if _folder(store, step) not in (data, None) or step == verified(store):
        if not full:
            store.delete([key])
        return False
    found = store.get(key)
    # This took so long that another process took the claim over, or somebody has pinned the checkpoint.
    if (found is not None) if full else not is_claim(found):
        return False
    store.delete([layout.manifest(step)])
    _remove_files(store, step, data)
    return True


def _folder(store: Store, step: int) -> str | None:
    """The folder of a checkpoint's files; None if there is no readable checkpoint."""
    with contextlib.suppress(CheckpointDamaged):
        return checkpoints.read(store, step).data
    return None


def _remove_files(store: Store, step: int, data: str) -> None:
    """Remove the files of a checkpoint without a manifest; the claim is removed last."""
    store.delete([*(entry.key for entry in store.list(data)), layout.uses(step)])
    store.delete([layout.pin(step)])


def _go_on(store: Store) -> list[int]:
    """Finish removals that were interrupted after their manifests were gone.

    Returns:
        The steps of other claims that are too old to be of a living process.
    """
    there, old = set(checkpoints.steps(store)), []
    for step in checkpoints.steps_below(store, layout.PINS):
        data, at = claimed(store.get(layout.pin(step))) or (None, 0.0)
        # Only files of the claim's own step, even if the claim names others.
        if data is not None and step not in there and _step_of(data) == step:
            _remove_files(store, step, data)
        elif data is not None and at < time.time() - _CLAIM_SECONDS:
            old.append(step)
    return old


def uncommitted(store: Store, before_attempt: int) -> list[Entry]:
    """The files that attempts before this one left without a commit."""
    there = checkpoints.steps(store)  # first: a checkpoint that is set aside meanwhile is here, or recorded
    committed = {manifest.step: manifest.data for manifest in checkpoints.readable(store, there)}
    aside = {step: data_of(step, record) for step, record in quarantine_records(store)}
    # A manifest that cannot be read may be of a newer release: its files are unknown.
    unknown = set(there) - committed.keys()
    unknown.update(step for step, data in aside.items() if data is None)
    needed = {*committed.values(), *aside.values()}
    stale = []
    for entry in store.list(layout.CHECKPOINT_DATA):
        folder = _folder_of(entry.key)
        if (
            f"{layout.CHECKPOINT_DATA}{folder}/" not in needed
            and _is_before(before_attempt, entry.key)
            and int(folder.partition("-")[0]) not in unknown
        ):
            stale.append(entry)
    return stale


def _step_of(data: str) -> int | None:
    """The step of the files in this folder; None if it is not the folder of a checkpoint."""
    folder, _, rest = data.removeprefix(layout.CHECKPOINT_DATA).partition("/")
    number = folder.partition("-")[0]
    return int(number) if data.startswith(layout.CHECKPOINT_DATA) and not rest and number.isdigit() else None


def _folder_of(key: str) -> str:
    return key.removeprefix(layout.CHECKPOINT_DATA).partition("/")[0]


def _is_before(attempt: int, key: str) -> bool:
    """Whether an attempt before this one wrote the checkpoint file of this key."""
    wrote = _folder_of(key).partition("-a")[2].partition("-")[0]
    return wrote.isdigit() and int(wrote) < attempt


def _logged_by(key: str) -> int:
    """The attempt that wrote this output."""
    number = key.removeprefix(layout.LOGS).partition("/")[0].removeprefix("attempt-")
    return int(number) if number.isdigit() else 0


def remove_uncommitted(store: Store, before_attempt: int) -> int:
    """Remove files that earlier attempts left without a commit, or half-written; returns how many.

    Call it only when none of these attempts runs.
    """
    left = _go_on(store)  # first: only the claims know of these files
    stale = uncommitted(store, before_attempt)
    store.delete([*(entry.key for entry in stale), *map(layout.pin, left)])
    store.abandon(layout.LOGS, lambda key: _logged_by(key) < before_attempt)
    return len(stale) + store.abandon(layout.CHECKPOINTS, partial(_is_left, before_attempt))


def _is_left(attempt: int, key: str) -> bool:
    """Whether a half-written object is left over. Outside of the folders of attempts objects are small, and no attempt
    before this one may commit any more.
    """
    return not key.startswith(layout.CHECKPOINT_DATA) or _is_before(attempt, key)
