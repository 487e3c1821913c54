"""`airflow-elastic ui`: the pages of all runs below a URI, in a browser."""

from __future__ import annotations

import importlib
import os

import click

from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import PORT
from airflow_elastic.spec.errors import InvalidInput

#: It is above the command line, which does not import it until it is asked for: its packages are an extra.
_SERVER = "airflow_elastic.web.standalone.server"

#: Holds the token, where it should stay the same.
VARIABLE = "AIRFLOW_ELASTIC_UI_TOKEN"

_SHORTEST = 16


@click.command(cls=Command)
@click.argument("root")
@click.option(
    "--port",
    type=PORT,
    metavar="N",
    help="Where to listen; 0 takes a free port.  [default: 8750, or one of the next]",
)
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def ui(root: str, port: int | None, browser: bool) -> None:
    """Show all runs of a folder or an S3 prefix in a browser.

    The pages show what a run does, and how it came there. Their buttons steer it. The server listens on this machine
    only. The printed address has a token, and nobody without it gets an answer. The variable AIRFLOW_ELASTIC_UI_TOKEN
    sets it, e.g. for Prometheus, which finds the runs at work under /metrics.

    Examples:
      airflow-elastic ui /mnt/runs
      airflow-elastic ui s3://bucket/runs --port 9000 --no-browser
    """
    try:
        server = importlib.import_module(_SERVER)
    except ModuleNotFoundError as error:
        module = error.name or str(error)
        raise InvalidInput(f"`airflow-elastic ui` needs {module}: {how_to_install(module)}") from error
    token = os.environ.get(VARIABLE)
    if token is not None and len(token) < _SHORTEST:
        raise InvalidInput(f"{VARIABLE}: given {len(token)} characters; allowed: at least {_SHORTEST}")
    server.serve(root, port=port, browser=browser, say=click.echo, token=token)
