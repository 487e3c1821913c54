"""The launcher `dlrover-run`: DLRover's own command, once on each worker of an ElasticJob.

Workers meet at the job master, whose address DLRover puts into each pod. Without a master, it runs on one worker only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.launchers.api import BY_NAME, Launcher, Place, module_or_script
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.validation import Checks, choice

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec

ACCELERATORS = ("nvidia.com/gpu", "ascend-npu", "mthreads.com/gpu")

#: Engines whose pods have a job master.
_WITH_MASTER = ("elasticjob",)


@dataclass(frozen=True, slots=True)
class DLRoverOptions:
    """`launcher_options` of dlrover-run.

    Attributes:
        precheck: 0: none. 1: a matmul and an allgather in pairs of workers. 2: an allgather of all workers.
        auto_config: take the numbers of workers and ranks from the job and its machines; with a check from 4 workers
            on.
        auto_tunning: let the master tune batch size and learning rate. (DLRover's spelling.)
        exclude_straggler: end a worker that the check finds more than twice as slow as the median.
        save_at_breakpoint: write the checkpoint that is in memory when a rank fails.
        accelerator: nvidia.com/gpu, ascend-npu or mthreads.com/gpu.
        training_port: first port of the ranks.
        numa_affinity: bind ranks to the processors near their device.
        network_check: deprecated: use precheck 1.
        comm_perf_test: deprecated: use precheck 2.
    """

    precheck: int | None = None
    auto_config: bool = False
    auto_tunning: bool = False
    exclude_straggler: bool = False
    save_at_breakpoint: bool = False
    accelerator: str | None = None
    training_port: int | None = None
    numa_affinity: bool = False
    network_check: bool = False
    comm_perf_test: bool = False

    def __post_init__(self) -> None:
        with Checks() as check:
            if self.precheck is not None:
                check.that(self.precheck in (0, 1, 2), "precheck", self.precheck, "0, 1 or 2")
            if self.accelerator is not None:
                check("accelerator", self.accelerator, choice(ACCELERATORS))
            if self.training_port is not None:
                good = 1024 <= self.training_port <= 65535
                check.that(good, "training_port", self.training_port, "an integer from 1024 to 65535")
            checked = bool(self.precheck) or self.network_check or self.auto_config
            alone = self.exclude_straggler and not checked
            check.that(
                not alone,
                "exclude_straggler",
                True,
                "precheck 1 or 2 with it: stragglers are found by a check",
            )


def _command(spec: RunSpec, place: Place) -> list[str]:
    options: DLRoverOptions = DLROVER_RUN.options_of(spec)
    flags = (
        *("auto_config", "auto_tunning", "exclude_straggler", "save_at_breakpoint"),
        *("numa_affinity", "network_check", "comm_perf_test"),
    )
    values = {
        "precheck": options.precheck,
        "node_unit": spec.workers.node_unit if spec.workers.node_unit > 1 else None,
        "accelerator": options.accelerator,
        "training_port": options.training_port,
    }
    return [
        *(place.python, *BY_NAME, "dlrover.trainer.torch.elastic_run"),
        *(["--standalone"] if spec.engine not in _WITH_MASTER else []),
        f"--nnodes={place.nodes}",
        f"--node_rank={place.node_rank}",
        f"--nproc_per_node={spec.workers.procs}",
        # A failed rank ends the attempt: the run's own budget decides what follows.
        "--max_restarts=0",
        *(f"--{name}={value}" for name, value in values.items() if value is not None),
        *(f"--{name}" for name in flags if getattr(options, name)),
        *module_or_script(spec),
    ]


def _check(spec: RunSpec) -> None:
    if spec.engine not in _WITH_MASTER and spec.workers.at_most > 1:
        allowed = (
            "1 with the launcher dlrover-run, unless the engine is elasticjob: workers meet at its job master"
        )
        raise SpecError(Problem("workers.max", spec.workers.at_most, allowed))


DLROVER_RUN = Launcher(
    name="dlrover-run",
    summary="dlrover-run, once on each worker: node checks, stragglers, tuning by DLRover's master",
    command=_command,
    check=_check,
    module="dlrover",
    options=DLRoverOptions,
)
