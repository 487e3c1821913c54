"""The launchers that come with the project."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_elastic.launchers.api import BY_NAME, START_RANK, Launcher, Place, module_or_script
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec


class Start(StrEnum):
    """How ranks start."""

    FORK = "fork"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class TorchrunOptions:
    """`launcher_options` of torchrun.

    Attributes:
        start: how a rank starts. `fork`: by a fork of a process that has imported torch, once for all ranks of a
            worker. Then ranks begin with the script, and share memory. Environment variables that the script sets
            before it imports torch come too late: give them in `env`, or start `cold`. `cold`: in a new process.
            Default: `fork`.
        spares: the former name; false is `start: cold`. Default: true.
    """

    start: Start = Start.FORK
    spares: bool = True


def _rank_command(spec: RunSpec, place: Place) -> list[str]:
    # Our own entry point: it keeps the traceback of a failing rank, and does nothing else. torchrun passes -u, too.
    return [place.python, "-u", START_RANK, "--", *spec.command]


def _fork_server_command(spec: RunSpec, python: str) -> list[str]:
    options: TorchrunOptions = TORCHRUN.options_of(spec)
    script = spec.command[0]
    of_python = script == "-m" or script.endswith(".py")
    forks = options.start is Start.FORK and options.spares
    return [python, "-u", START_RANK, "--fork-server"] if forks and of_python else []


def _torchrun(spec: RunSpec, place: Place) -> list[str]:
    return [
        *(place.python, *BY_NAME, "torch.distributed.run"),
        f"--nnodes={place.nodes}",
        f"--node-rank={place.node_rank}",
        f"--nproc-per-node={spec.workers.procs}",
        f"--master-addr={place.master_addr}",
        f"--master-port={place.master_port}",
        # A failed rank ends the attempt: the run's own budget decides what follows.
        "--max-restarts=0",
        *module_or_script(spec),
    ]


def _accelerate(spec: RunSpec, place: Place) -> list[str]:
    ranks = place.nodes * spec.workers.procs
    return [
        *(place.python, *BY_NAME, "accelerate.commands.launch"),
        *(["--multi_gpu"] if _gpus(spec) and ranks > 1 else []),
        *([] if _gpus(spec) else ["--cpu"]),
        f"--num_machines={place.nodes}",
        f"--machine_rank={place.node_rank}",
        f"--num_processes={ranks}",
        f"--main_process_ip={place.master_addr}",
        f"--main_process_port={place.master_port}",
        # With all options, as accelerate otherwise warns about each default, or reads the user's own configuration
        # file.
        *("--rdzv_backend=static", "--mixed_precision=no", "--dynamo_backend=no"),
        *module_or_script(spec),
    ]


def _python(spec: RunSpec, place: Place) -> list[str]:
    return _rank_command(spec, place)


def _gpus(spec: RunSpec) -> bool:
    return any("gpu" in name for name in spec.workers.resources)


def _one_process(spec: RunSpec) -> None:
    if spec.workers.procs != 1:
        allowed = "1 with the launcher python, which starts one process a worker; torchrun starts several"
        raise SpecError(Problem("workers.procs", spec.workers.procs, allowed))


TORCHRUN = Launcher(
    name="torchrun",
    summary="torchrun's environment for each rank, started by our agents: workers join and leave a live attempt",
    command=_rank_command,
    elastic=True,
    fork_server=_fork_server_command,
    options=TorchrunOptions,
)

TORCHRUN_PLAIN = Launcher(
    name="torchrun-plain",
    summary="the torchrun command as one would type it, once on each worker",
    command=_torchrun,
)

ACCELERATE = Launcher(
    name="accelerate",
    summary="accelerate launch, once on each worker",
    command=_accelerate,
    module="accelerate",
)

PYTHON = Launcher(
    name="python",
    summary="one plain Python process a worker, with RANK, WORLD_SIZE and MASTER_* set",
    command=_python,
    check=_one_process,
)
