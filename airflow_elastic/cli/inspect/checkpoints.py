"""`airflow-elastic verify` and `prune`: the checkpoints of a run, held against what was committed, and tidied."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from airflow_elastic.adapters.records import checkpoint_retention, journal
from airflow_elastic.adapters.records import checkpoints as stored
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import find_run, json_option, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.inspect.samples import verify_samples
from airflow_elastic.cli.number_types import COUNT, FROM_ZERO
from airflow_elastic.core.state import Phase
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One committed checkpoint, compared with its manifest."""

    step: int
    files: int
    bytes: int
    problems: list[str]
    foreign: bool = False


@click.command(cls=Command)
@uri_argument
@click.option("--samples", is_flag=True, help="Prove that each sample counts once, instead.")
@json_option
def verify(uri: str, samples: bool, as_json: bool) -> int:
    """Check every checkpoint, byte by byte.

    Each committed one is compared with its manifest: sizes and checksums of all its files. Exits 1 if any is
    damaged, and names the file; or if any is another run's, copied there later. A restart sets a damaged checkpoint
    aside and takes the one before; those that were set aside are named, too. The newest whole one stays, whatever the
    run removes, until ranks or this command have read another one whole.

    With --samples it checks what the run's ranks have consumed, over all attempts and world sizes, up to the newest
    checkpoint: every sample of an epoch has to count exactly once. The run has to keep that: --account-samples.

    Example:
      airflow-elastic verify /mnt/runs/mnist
    """
    store = find_run(uri).store
    if samples:
        return verify_samples(store, as_json=as_json)
    console = say.console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    is_ours = journal.is_ours(store)
    with progress:
        found = (_verify(store, step, is_ours, progress) for step in stored.steps(store))
        verdicts = [verdict for verdict in found if verdict is not None]
    damaged = [verdict for verdict in verdicts if verdict.problems]
    whole = [verdict.step for verdict in verdicts if not verdict.problems]
    _note(store, whole)
    if as_json:
        rows = [{**asdict(verdict), "ok": not verdict.problems} for verdict in verdicts]
        aside = [
            {"step": step, "reason": reason}
            for step, reason in checkpoint_retention.quarantined(store).items()
        ]
        say.print_json({"uri": store.uri, "ok": not damaged, "checkpoints": rows, "quarantined": aside})
        return 1 if damaged else 0
    for verdict in verdicts:
        fine = f"whole, {verdict.files} files, {say.size(verdict.bytes)}"
        wrong = "NOT THIS RUN'S" if verdict.foreign else "DAMAGED"
        click.echo(f"checkpoint {verdict.step}: {wrong if verdict.problems else fine}")
        for problem in verdict.problems:
            click.echo(f"  {problem}")
    for step, reason in checkpoint_retention.quarantined(store).items():
        click.echo(f"checkpoint {step}: was damaged, and set aside: {reason}")
    if not verdicts:
        click.echo(f"{store.uri} holds no checkpoint yet")
    elif damaged:
        then = f"a restart goes on from {max(whole)}" if whole else "none is left to restart from"
        if verdicts[-1].foreign:
            then = f"a restart is refused as long as {layout.manifest(verdicts[-1].step)} is there"
        click.echo(f"{len(damaged)} of {len(verdicts)} checkpoints cannot be used: {then}")
    return 1 if damaged else 0


def _note(store: Store, whole: list[int]) -> None:
    """Have the newest one known to be whole that is still there: the run may have removed some meanwhile."""
    newest = max({*whole} & {*stored.steps(store)}, default=None)
    with contextlib.suppress(StoreError):  # who looks may have no right to write
        checkpoint_retention.note_verified(store, newest)


def _verify(
    store: Store, step: int, is_ours: Callable[[Manifest], bool], progress: Progress
) -> _Verdict | None:
    """The verdict on one checkpoint; None where the run has removed it meanwhile, as it does with old ones."""
    try:
        manifest = stored.read(store, step)
    except CheckpointDamaged as error:
        return _Verdict(step, 0, 0, [str(error)]) if step in stored.steps(store) else None
    total = sum(file.size for file in manifest.files)
    task = progress.add_task(f"checkpoint {step}", total=total)
    found, foreign = list[str](), not is_ours(manifest)
    if foreign:
        found.append(f"it was copied there from another run ({manifest.run}) when this one had begun")
    for i, file in enumerate(manifest.files):
        found += stored.problems(store, manifest, only=i.__eq__)
        progress.advance(task, file.size)
    progress.remove_task(task)
    if found and step not in stored.steps(store):
        return None
    return _Verdict(step, len(manifest.files), total, found, foreign)


@click.command(cls=Command)
@uri_argument
@click.option("--keep", type=COUNT, required=True, metavar="N", help="The newest N stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(uri: str, keep: int, dry_run: bool) -> None:
    """Remove old checkpoints and leftovers.

    Leftovers are files that ended attempts have written without committing them. The newest N stay, those that were
    pinned, the one that was last read whole (by ranks that went on from it, or by `airflow-elastic verify`), and what
    else the run's specification keeps; at least one of them has to have all its files, or nothing is removed. A live
    attempt is not disturbed.

    Example:
      airflow-elastic prune /mnt/runs/mnist --keep 1 --dry-run
    """
    run = find_run(uri)
    store, attempt = run.store, run.state.attempt
    policy = replace(run.state.spec.checkpoint, keep_last=keep)
    try:
        old = checkpoint_retention.to_prune(store, policy)
    except CheckpointDamaged as error:
        raise InvalidInput(
            f"{error}; look with `{say.command('verify', store.uri)}`, then keep more"
        ) from error
    # Of the current attempt, too, once nothing of it lives; never of one that may still be writing.
    before = attempt.number + 1 if attempt.phase is Phase.GONE else attempt.number
    left = checkpoint_retention.uncommitted(store, before)
    would = "would remove" if dry_run else "removed"
    if not dry_run:
        old = checkpoint_retention.prune(store, policy)
        checkpoint_retention.remove_uncommitted(store, before)
    click.echo(f"{would} {_count(len(old), 'checkpoint')}{': ' if old else ''}{', '.join(map(str, old))}")
    click.echo(
        f"{would} {_count(len(left), 'file')} that no checkpoint needs, {say.size(sum(entry.size for entry in left))}"
    )


@click.command(cls=Command)
@uri_argument
@click.argument("step", type=FROM_ZERO)
@click.option("--remove", is_flag=True, help="Leave it to the run's specification again.")
def pin(uri: str, step: int, remove: bool) -> None:
    """Keep the checkpoint of a step, whatever else is removed.

    For what somebody refers to: a promotion, a report. Neither the run nor `prune` removes it.

    Example:
      airflow-elastic pin /mnt/runs/mnist 340
    """
    store = find_run(uri).store
    if remove:
        checkpoint_retention.unpin(store, step)
        click.echo(f"checkpoint {step} is not pinned")
        return
    try:
        checkpoint_retention.pin(store, step, by=say.asker())
    except CheckpointDamaged as error:
        there = ", ".join(map(str, stored.steps(store))) or "none"
        raise InvalidInput(f"{error}; there are: {there}") from error
    click.echo(f"checkpoint {step} is pinned")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
