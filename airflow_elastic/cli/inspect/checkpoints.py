"""`airflow-elastic verify`, `prune`, `pin` and `checkpoint list`: check, remove, keep and list checkpoints."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from airflow_elastic.adapters.records import checkpoint_retention, journal
from airflow_elastic.adapters.records import checkpoints as stored
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import find_run, json_option, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.inspect.samples import verify_samples
from airflow_elastic.cli.number_types import COUNT, FROM_ZERO
from airflow_elastic.control.prune import prune_run
from airflow_elastic.core.units import size
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.views.cache import Reader
from airflow_elastic.views.checkpoints import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
@click.option("--samples", is_flag=True, help="Instead, check that each sample counts once.")
@json_option
def verify(uri: str, samples: bool, as_json: bool) -> int:
    """Check every checkpoint, byte by byte.

    Sizes and checksums of all files are compared with the checkpoint's manifest. Exits 1 if a checkpoint is damaged,
    and names the file; also if a checkpoint was copied there from another run. A restart sets a damaged checkpoint
    aside and takes the one before; the output names these, too. The run keeps the newest complete checkpoint until
    ranks or this command have read another one completely.

    With --samples it checks the samples that ranks have consumed, over all attempts and world sizes. Up to the newest
    checkpoint, every sample of an epoch must count exactly once. The run must record them with --account-samples.

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
        fine = f"whole, {verdict.files} files, {size(verdict.bytes)}"
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
    """Record which checkpoints were verified, if the run has not removed them meanwhile; the newest one is kept."""
    newest = max({*whole} & {*stored.steps(store)}, default=None)
    with contextlib.suppress(StoreError):  # the user may have no right to write
        checkpoint_retention.note_verified(store, newest, by=f"{say.asker()}, by `verify`", also=whole)


def _verify(
    store: Store, step: int, is_ours: Callable[[Manifest], bool], progress: Progress
) -> _Verdict | None:
    """The verdict on one checkpoint. None if the run has removed it meanwhile, as it does with old ones."""
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

    Leftovers are files that ended attempts have written and not committed. The newest N checkpoints stay, and those
    that are pinned. The one that was last read completely stays, too: ranks went on from it, or `airflow-elastic
    verify` has checked it. So do those that the run's specification keeps. If none of them has all its files, nothing
    is removed. A live attempt is not disturbed.

    Example:
      airflow-elastic prune /mnt/runs/mnist --keep 1 --dry-run
    """
    run = find_run(uri)
    try:
        removed = prune_run(run, keep, dry_run=dry_run)
    except CheckpointDamaged as error:
        raise InvalidInput(
            f"{error}; look with `{say.command('verify', run.store.uri)}`, then keep more"
        ) from error
    would, steps = "would remove" if dry_run else "removed", removed.steps
    click.echo(
        f"{would} {_count(len(steps), 'checkpoint')}{': ' if steps else ''}{', '.join(map(str, steps))}"
    )
    files = _count(removed.leftovers, "file")
    click.echo(f"{would} {files} that no checkpoint needs, {size(removed.leftover_bytes)}")


@click.command(cls=Command)
@uri_argument
@click.argument("step", type=FROM_ZERO)
@click.option("--remove", is_flag=True, help="Remove the pin.")
def pin(uri: str, step: int, remove: bool) -> None:
    """Keep the checkpoint of a step.

    Neither the run nor `prune` removes it. Use it for a checkpoint that a promotion or a report names.

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


@click.command("list", cls=Command)
@uri_argument
@json_option
def list_checkpoints(uri: str, as_json: bool) -> None:
    """List the checkpoints of a run: which tiers have them, when they were verified, and who uses them.

    Memory and disk are those of the workers, as these have last said.

    Example:
      airflow-elastic checkpoint list /mnt/runs/mnist
    """
    store = find_run(uri).store
    told = listed(Reader(store))
    if as_json:
        say.print_json({"uri": store.uri, **told})
        return
    rows = told["checkpoints"]
    if not rows:
        click.echo(f"{store.uri} holds no checkpoint yet")
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("step", "committed", "size", "kept in", "attempt", "verified", "remarks"):
        is_number = name in ("step", "size", "attempt")
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=name not in ("verified", "remarks")
        )
    for row in rows:
        table.add_row(
            str(row["step"]),
            _moment(row["at"]),
            "–" if row["bytes"] is None else size(row["bytes"]),
            ", ".join(row["tiers"]) or "–",
            str(row["attempt"] or "–"),
            _verified(row),
            say.plain(_remarks(row)),
        )
    say.console().print(table)


def _moment(at: float | None) -> str:
    return "–" if at is None else say.moment(at)


def _verified(row: Mapping[str, Any]) -> Text:
    if row["verified_at"] is None:
        return Text("yes" if row["verified"] else "not yet")
    return say.plain(f"{_moment(row['verified_at'])} by {row['verified_by']}")


def _remarks(row: Mapping[str, Any]) -> str:
    found = []
    if row["damaged"]:
        found.append(f"cannot be used: {row['damaged']}")
    if (pin := row["pinned"]) is not None:
        by = f" by {pin['by']}" if pin["by"] else ""
        at = "" if pin["at"] is None else f", {_moment(pin['at'])}"
        found.append(f"pinned{by}{at}")
    for one in row["evaluations"]:
        measured = ", ".join(f"{name} {value:g}" for name, value in sorted(one["metrics"].items()))
        found.append(f"evaluated: {measured or 'no metric'}")
    if row["used_by"]:
        found.append(f"used by {', '.join(row['used_by'])}")
    return "; ".join(found)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
