"""`airflow-elastic simulate`: what policies would have made of a trace, in virtual time."""

from __future__ import annotations

from pathlib import Path

import click

from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import COUNT, FROM_ZERO, SECONDS

SYNTHETIC = "synthetic"


@click.command(cls=Command)
@click.argument("trace")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Only this policy; may be repeated: static-least | static-requested | static-most | hpa-cpu | dlrover | "
    "pollux | elastic-alone | elastic-shared.",
)
@click.option("--format", "form", metavar="NAME", help="own, philly, helios or pai.  [default: recognised]")
@click.option("--nodes", type=COUNT, help="Machines of the cluster.  [default: as the trace says]")
@click.option(
    "--gpus-per-node", "gpus", type=COUNT, help="GPUs of each machine.  [default: as the trace says]"
)
@click.option("--seed", type=FROM_ZERO, help="For all that is drawn.  [default: by chance, and shown]")
@click.option("--runs", type=COUNT, default=200, show_default=True, help="Runs of a synthetic trace.")
@click.option("--days", type=SECONDS, default=2.0, show_default=True, help="Days of a synthetic trace.")
@click.option("--load", type=SECONDS, default=0.7, show_default=True, help="Load of a synthetic trace.")
@click.option(
    "--fail-hours",
    type=SECONDS,
    help="Mean hours between failures of a machine.  [default: 700; none for a file]",
)
@click.option("--recreate", is_flag=True, help="Each scale step takes a new job, not only new workers.")
@click.option(
    "--write", type=click.Path(path_type=Path), help="Write the trace here, in our own format, and end."
)
@json_option
def simulate(
    trace: str,
    policies: tuple[str, ...],
    form: str | None,
    nodes: int | None,
    gpus: int | None,
    seed: int | None,
    runs: int,
    days: float,
    load: float,
    fail_hours: float | None,
    recreate: bool,
    write: Path | None,
    as_json: bool,
) -> int:
    """Replay a trace of a cluster under scaling policies, in virtual time.

    TRACE is a file: a trace of Philly, Helios or Alibaba PAI in its public format, or one of our own. Or it is the
    word `synthetic`: then one is drawn. Nothing is started, and no cluster is asked. The table shows for each policy
    how long runs wait and take, and which GPU time is lost, beside what no schedule can beat.

    Public traces do not say how a job's speed depends on its workers. That is drawn from the seed, so that each job
    takes as long as it did with the GPUs that it had. Philly's cluster_job_log is at
    github.com/msr-fiddle/philly-traces. Helios' cluster_log.csv is at github.com/S-Lab-System-Group/HeliosData. The
    pai_task_table.csv of PAI is at github.com/alibaba/clusterdata.

    Examples:
      airflow-elastic simulate synthetic --runs 200 --days 2 --seed 1
      airflow-elastic simulate cluster_job_log --nodes 64 --gpus-per-node 8 --policy static-requested
      airflow-elastic simulate synthetic --runs 1000 --days 7 --seed 1 --write week.jsonl
      airflow-elastic simulate week.jsonl --json
    """
    import secrets

    from airflow_elastic.testing.simulator.compare import compare
    from airflow_elastic.testing.simulator.policies.known import NAMES
    from airflow_elastic.testing.simulator.report import LEGEND, document, table
    from airflow_elastic.testing.simulator.traces import own
    from airflow_elastic.testing.simulator.traces.read import FORMATS, read
    from airflow_elastic.testing.simulator.traces.synthetic import Synthetic, synthetic, with_outages
    from airflow_elastic.testing.simulator.traces.trace import TraceError
    from airflow_elastic.testing.simulator.traces.workloads import Elasticity

    if form is not None and form not in FORMATS:
        raise click.BadParameter(f"given {form!r}; allowed: {', '.join(FORMATS)}", param_hint="--format")
    for name in policies:
        if name not in NAMES:
            raise click.BadParameter(f"given {name!r}; allowed: {', '.join(NAMES)}", param_hint="--policy")
    seed = secrets.randbelow(2**31) if seed is None else seed
    if trace == SYNTHETIC:
        what = Synthetic(
            runs=runs, days=days, load=load, nodes=nodes or 0, gpus=gpus or 8, fail_hours=fail_hours or 700
        )
        found = synthetic(what, seed)
    else:
        found = read(Path(trace), form, seed, Elasticity())
        if nodes is not None or gpus is not None:
            found = found.on(nodes or found.nodes, gpus or found.gpus)
        if fail_hours is not None:
            found = with_outages(found, fail_hours, seed)
    if not found.jobs:
        raise TraceError(f"{trace}: no job fits on {found.nodes} × {found.gpus} GPUs; give more by --nodes")
    if write is not None:
        write.write_text(own.text(found), encoding="utf-8")
        click.echo(f"{write}: {len(found.jobs)} jobs, seed {seed}")
        return 0
    done = compare(found, policies or NAMES, in_place=not recreate)
    if as_json:
        say.print_json(document(done, seed))
        return 0
    console = say.console()
    left = ", ".join(f"{count} × {reason}" for reason, count in found.left_out.items())
    console.print(
        f"{found.name}: {len(found.jobs)} runs on {found.nodes} × {found.gpus} GPUs, "
        f"{len(found.outages)} outages, seed {seed}" + (f"; left out: {left}" if left else "")
    )
    console.print(table(done))
    console.print(LEGEND, style="dim")
    return 0
