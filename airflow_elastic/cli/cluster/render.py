"""`airflow-elastic render`: print the manifest that would be sent to an engine."""

from __future__ import annotations

import json
import os

import click
import yaml

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.drive.options import with_defaults
from airflow_elastic.cli.drive.spec_file import build, in_file, read_plain
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import COUNT
from airflow_elastic.engines.api import Job, find_engine
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import SpecError


@click.command(cls=Command)
@click.option("--engine", help="Where workers would run.  [default: as SPEC.yaml says]")
@click.option("--uri", help="The run URI it would have.  [default: ./elastic-runs/NAME]")
@click.option("--attempt", type=COUNT, default=1, help="Number of the attempt.  [default: 1]")
@click.option("--object", "which", metavar="KIND/NAME", help="Which object of a manifest is meant.")
@click.argument("spec_path", metavar="SPEC.yaml")
def render(engine: str | None, uri: str | None, attempt: int, which: str | None, spec_path: str) -> None:
    """Print the manifest that would be sent to an engine, as YAML.

    Nothing is sent, and nothing is created. SPEC.yaml is a specification, or a manifest of Kubernetes. Its kind is Job,
    PyTorchJob, TrainJob, ElasticJob or PyTorchTrainingJob.

    Example:
      airflow-elastic render --engine local mnist.yaml
    """
    plain = read_plain(spec_path, which)
    spec = build(with_defaults({**plain, "engine": engine} if engine is not None else plain), spec_path)
    try:
        find_launcher(spec.launcher).refuse(spec)
        found = find_engine(spec.engine)
        found.check(spec)
    except SpecError as error:
        raise in_file(error, spec_path if engine is None else None) from None
    store = open_store(uri or os.path.join("elastic-runs", spec.name))
    manifest = found.render(Job(store.uri, spec, attempt, spec.workers.count))
    # Through JSON, which is sent to the engine: YAML has no tuples and no enums.
    click.echo(
        yaml.safe_dump(json.loads(json.dumps(manifest)), sort_keys=False, allow_unicode=True), nl=False
    )
