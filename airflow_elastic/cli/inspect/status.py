"""`airflow-elastic status`: show the progress of a run."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import (
    controller_hint,
    controller_silence,
    find_run,
    json_option,
    silent_since,
    uri_argument,
)
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.inspect.run_table import summaries, table
from airflow_elastic.core.event_sentences import restoring, sizes, waits, workers
from airflow_elastic.core.goodput import ROWS
from airflow_elastic.core.health.recovery import start_words, stayed_words
from airflow_elastic.core.health.recovery import words as recovery_words
from airflow_elastic.core.phases import named, phase_sentence
from airflow_elastic.core.units import size
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import InvalidInput, RunMissing
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.status import Wait, Waiting
from airflow_elastic.spec.training.early_stop import Watch
from airflow_elastic.spec.training.recovery import Recovery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.run import RunSpec

_COLOURS = {
    "succeeded": "bold green",
    "failed": "bold red",
    "running": "bold cyan",
    **dict.fromkeys(map(str, Waiting), "bold yellow"),
}


@click.command(cls=Command)
@uri_argument
@json_option
@click.option("--script", is_flag=True, help="Print only the text of the script, if it is part of the run.")
def status(uri: str, as_json: bool, script: bool) -> None:
    """Show the progress of a run, or list the runs of a folder.

    It shows state, attempts and why they ended, checkpoints, and where the time went. If no controller has written for
    15 seconds, it says what to do. If runs are stored below the URI, it shows a line for each.

    With --json it prints the status document (docs/reference/status.md). Its field `controller` says when a controller
    last wrote. Its `silent_seconds` is null, unless that is too long ago. A list of runs is under `runs`.

    Examples:
      airflow-elastic status /mnt/runs/mnist
      airflow-elastic status /mnt/runs
      airflow-elastic status s3://bucket/runs/mnist --json
      airflow-elastic status /mnt/runs/mnist --script > train.py
    """
    if script:
        _script(find_run(uri).state.spec, uri)
        return
    try:
        run = find_run(uri)
    except RunMissing:
        if not (runs := summaries(store := open_store(uri))):
            raise
        _several(store, runs, as_json=as_json)
        return
    state, document = run.state, run.status()
    if as_json:
        seen = {"written_at": silent_since(run.store), "silent_seconds": controller_silence(run.store, state)}
        say.print_json({**document, "controller": seen})
        return
    console = say.console()
    _head(console, document, len(checkpoints.steps(run.store)))
    _attempts(console, document)
    _ranks(console, document)
    if (hint := controller_hint(run.store, state)) is not None:
        console.print(hint, style="yellow", soft_wrap=True)


def _script(spec: RunSpec, uri: str) -> None:
    """Print the script that the next attempt begins with."""
    if spec.script is None:
        raise InvalidInput(
            f"{uri}: the script is no part of the run, it is in a file of the workers: {' '.join(spec.command)}"
        )
    click.echo(spec.script, nl=False)


def _several(store: Store, runs: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        say.print_json({"uri": store.uri, "runs": runs})
    else:
        say.console().print(table(store, runs, _COLOURS))


def _head(console: Console, document: Mapping[str, Any], kept: int) -> None:
    run, label, now = document["run"], document["state"], document["at"]
    console.print(
        Text.assemble((run["name"], "bold"), "  ", (label, _COLOURS.get(label, "bold")), "  ", run["uri"]),
        soft_wrap=True,
    )
    ended = document["ended_at"]
    if document["reason"]:
        console.print(f"why: {document['reason']}", soft_wrap=True)
    if document["waiting"]:
        console.print(Text(waits(decode(Wait, document["waiting"])), style="yellow"), soft_wrap=True)
    if reading := document["restoring"]:
        console.print(restoring(reading["bytes"], reading["of_bytes"]), soft_wrap=True)
    if starting := document.get("starting"):
        console.print(_start(starting, now), soft_wrap=True)
    wanted = document["target_workers"]
    ranks = document["world_size"]
    more = f", {wanted} wanted" if wanted != document["workers"] and not ended else ""
    lines = [
        f"{run['engine']}, {run['launcher']}: {workers(document['workers'])}{more}{_standby(document)}, "
        f"{ranks} rank{'' if ranks == 1 else 's'}",
        *([f"starts from {decode(Origin, origin).words}"] if (origin := document.get("origin")) else []),
        _position(document),
        *([f"early stop: {decode(Watch, watch).words}"] if (watch := document.get("early_stop")) else []),
        *([_scaling(said)] if (said := document.get("scaling")) else []),
        *_trainings(document),
        _saved(document, now, kept),
        _time(document),
        *_last_recovery(document),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _standby(document: Mapping[str, Any]) -> str:
    phases = [one["phase"] for one in document.get("placement", ()) if one.get("standby")]
    if not phases:
        return ""
    starting = phases.count("pending")
    return f", {phases.count('running')} standby" + (f" ({starting} more to come)" if starting else "")


def _scaling(said: Mapping[str, Any]) -> str:
    steps = f"{said['steps']} scale step{'' if said['steps'] == 1 else 's'} so far"
    if said["reason"] is None:
        return f"scaling policy: {steps}"
    wanted = "" if said["wanted"] == said["workers"] else f", would have {said['wanted']}"
    return f"scaling policy: {workers(said['workers'])}{wanted}: {said['reason']}; {steps}"


def _start(starting: Mapping[str, Any], now: float) -> str:
    longest = starting["longest_seconds"]
    usual = "" if longest is None else f", earlier starts took up to {say.duration(longest)}"
    waited = say.duration(max(0.0, now - starting["since"]))
    return f"no step for {waited} since its start, which may take {say.duration(starting['limit_seconds'])}{usual}"


def _position(document: Mapping[str, Any]) -> str:
    reached = max((attempt["last_step"] for attempt in document.get("attempts", ())), default=0)
    if not document["step"] and not reached:
        return "no step reported so far"
    parts = [f"step {say.step_of(document)}", f"epoch {document['epoch']}"]
    if not document["step"]:  # no checkpoint was saved
        parts[0] += f" again, after step {reached}"
    if document["loss"] is not None:  # "step loss", because a script may have a metric "loss"
        parts.append(f"step loss {say.number(document['loss'])}")
    parts += [f"{name} {say.number(value)}" for name, value in document["metrics"].items()]
    samples = document["samples"]
    if samples["seen"]:
        parts.append(f"{say.number(samples['seen'])} samples")
    if samples["per_second"]:
        over = " at last" if document["ended_at"] is not None else ""
        parts.append(f"{say.number(samples['per_second'])} samples/s{over}")
    return ", ".join(parts)


def _trainings(document: Mapping[str, Any]) -> list[str]:
    phases = document.get("phases", [])
    over = document["ended_at"] is not None
    return (
        [phase_sentence(one, number, over=over) for number, one in enumerate(phases)] if named(phases) else []
    )


def _saved(document: Mapping[str, Any], now: float, kept: int) -> str:
    newest, restarts = document["checkpoints"]["newest"], document["restarts"]
    saved = "no checkpoint"
    if newest is not None:
        count = document["checkpoints"]["committed"]
        saved = (
            f"{count} checkpoint{'' if count == 1 else 's'} committed, {kept} kept, "
            f"the newest at step {newest['step']}, {say.duration(max(0.0, now - newest['at']))} ago"
        )
    if (unsaved := document["checkpoints"].get("unsaved")) is not None:
        saved += f", and step {unsaved['step']} is not saved as it should be, says {unsaved['worker']}: "
        saved += unsaved["reason"]
    if (left_out := document["checkpoints"].get("left_out")) is not None:
        saved += f", and the save of step {left_out['step']} was left out: {left_out['reason']}"
    if (unpruned := document["checkpoints"].get("unpruned")) is not None:
        saved += f", and old ones stay: {unpruned['reason']}"
    if (copy := document["checkpoints"].get("bad_copy")) is not None:
        saved += f", and {copy['worker']} refused a copy of that of step {copy['step']}: {copy['reason']}"
    return f"{saved}; {restarts['used']} of {restarts['limit']} restarts used"


def _time(document: Mapping[str, Any]) -> str:
    seconds = document["seconds"]
    rows = [(name, seconds[name]) for name in ROWS if seconds.get(name, 0.0) >= 0.05]
    spent = ", ".join(f"{name} {say.duration(value)}" for name, value in rows)
    # The goodput of a script that reports no steps is unknown.
    known = f"goodput {100 * document['goodput']:.0f} % of " if document["step"] else ""
    return f"{known}{say.duration(seconds['wall'])}" + (f": {spent}" if spent else "")


def _last_recovery(document: Mapping[str, Any]) -> list[str]:
    pairs = itertools.pairwise(document["attempts"])
    known = [(before, attempt) for before, attempt in pairs if attempt.get("recovery")]
    if not known:
        return []
    before, attempt = known[-1]
    first: Mapping[str, Any] = next(iter(attempt["stretches"]), {})
    parts = {name: seconds for name, seconds in attempt["recovery"].items() if name != "seconds"}
    start = start_words(before["number"], (one.get("last_step_at") for one in before["stretches"]))
    stayed = stayed_words(first.get("stayed"), first.get("world_size"))
    return [f"last recovery: first step {recovery_words(Recovery(**parts), start)}{stayed}"]


def _attempts(console: Console, document: Mapping[str, Any]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name, justify in (("attempt", "right"), ("workers", "right"), ("steps", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("began", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("ended because")
    for attempt in document["attempts"]:
        began = attempt["submitted_at"] or attempt["planned_at"]
        end = attempt["ended_at"] or document["ended_at"] or time.time()
        failure = attempt["failure"]
        cause = attempt["cause"] or ("" if document["ended_at"] else document["state"])
        table.add_row(
            str(attempt["number"]),
            sizes(attempt),
            f"{attempt['from_step']} → {attempt['last_step']}",
            say.moment(began),
            say.duration(max(0.0, end - began)),
            f"{cause}: {failure['reason']}" if failure else cause,
        )
    console.print(table)


def _ranks(console: Console, document: Mapping[str, Any]) -> None:
    if not document["ranks"]:
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("rank", "worker", "step", "s/step", "step loss", "memory", "heard"):
        table.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    for rank in document["ranks"]:
        loss, at = rank.get("loss"), rank.get("at") or 0.0
        table.add_row(
            str(rank["rank"]),
            rank["worker"],
            str(rank["step"]),
            f"{seconds:.3f}" if (seconds := rank.get("step_seconds")) else "",
            "" if loss is None else say.number(loss),
            size(rank.get("memory_bytes", 0)),
            f"{say.duration(max(0.0, document['at'] - at))} ago" if at else "not yet",
        )
    console.print(table)
