"""`airflow-elastic verify --samples`: check that every sample of an epoch counts exactly once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.records import checkpoints as stored
from airflow_elastic.adapters.records import journal
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.cli import console
from airflow_elastic.core.checkpoints.sample_accounts import Epoch, Sample, prove
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.adapters.storage.store import Store

_SHOWN = 5


def verify_samples(store: Store, *, as_json: bool) -> int:
    """Print the result of the check. Returns the exit code.

    It counts the samples up to the newest checkpoint that this run has written and that can be read.

    Raises:
        InvalidInput: the run does not record its samples, or has no such checkpoint.
    """
    steps, accounts = stored.steps(store), list(read_accounts(store))
    if not accounts:
        raise InvalidInput(
            f"{store.uri} has no record of its samples: start runs with --account-samples "
            "(checkpoint.account_samples), and use `run.loader` in the script"
        )
    if not steps:
        raise InvalidInput(f"{store.uri} has no checkpoint yet: samples count once a checkpoint has them")
    own = list(filter(journal.is_ours(store), stored.readable(store)))
    if not own:
        raise InvalidInput(
            f"{store.uri} has no readable checkpoint of its own among {steps}: look with `airflow-elastic verify`"
        )
    proof = prove(accounts, own[-1].step, own[-1].saved_by)
    if as_json:
        console.print_json({"uri": store.uri, "ok": proof.holds, **asdict(proof)})
        return 0 if proof.holds else 1
    several = any(epoch.phase for epoch in proof.epochs)
    for epoch in proof.epochs:
        click.echo(f"phase {epoch.phase}, {_line(epoch)}" if several else _line(epoch))
    if proof.left_out:
        named = [f"{epoch} of phase {phase}" if several else str(epoch) for phase, epoch in proof.left_out]
        click.echo(f"epochs without a consumed sample: {', '.join(named[:_SHOWN])}")
    if proof.untold:
        click.echo(
            f"in {len(proof.untold)} steps not every rank has reported its samples: {_some(proof.untold)}"
        )
    if proof.unsteady:
        click.echo(f"shards that had another length when they were read again: {_some(proof.unsteady)}")
    told = f"{sum(epoch.counted for epoch in proof.epochs)} samples of {proof.step} steps"
    again = f"; {proof.done_again} or more steps were lost and repeated" if proof.done_again else ""
    click.echo(f"{told}: {'each counts exactly once' if proof.holds else 'NOT PROVED'}{again}")
    return 0 if proof.holds else 1


def _line(epoch: Epoch) -> str:
    ranks = ", then ".join(map(str, epoch.world_sizes))
    whole = str(epoch.length) if epoch.length else "a number not known yet"
    part = "" if epoch.complete else f" of {whole}, not over yet"
    line = f"epoch {epoch.number}: {epoch.counted} samples{part}, by {ranks} {'rank' if ranks == '1' else 'ranks'}"
    if epoch.repeated:
        line += f"; {len(epoch.repeated)} count more than once: {_some(epoch.repeated)}"
    if not epoch.complete and epoch.counted < epoch.expected:
        line += f"; its steps should have consumed {epoch.expected}"
    if epoch.missing:
        line += f"; {len(epoch.missing)} were consumed by nobody: {_some(epoch.missing)}"
    return line


def _some(numbers: Sequence[Sample]) -> str:
    words = [one if isinstance(one, int) else "{1} of shard {0}".format(*one) for one in numbers[:_SHOWN]]
    return ", ".join(map(str, words)) + (", ..." if len(numbers) > _SHOWN else "")
