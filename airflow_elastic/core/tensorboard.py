"""How to open the TensorBoard of a run, in words. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from airflow_elastic.spec import layout
from airflow_elastic.spec.run import RunSpec

#: Of a TensorBoard beside workers on a cluster.
BOARD_PORT = 6006

#: The label of a job's pods; `engines.kube.render.names` has it, too.
_JOB_LABEL = "airflow-elastic/job"

#: The engine whose own platform shows TensorBoard.
_SHOWS_IT = "pytorchtrainingjob"


def tensorboard_command(uri: str) -> str:
    """`tensorboard --logdir /mnt/runs/mnist/tensorboard`: shows the event files of a run that writes them."""
    return f"tensorboard --logdir {shlex.quote(f'{uri}/{layout.TENSORBOARD}'.rstrip('/'))}"


def board_command(spec: RunSpec, job: str) -> str | None:
    """The command that opens the TensorBoard beside the workers of a job; None if there is none.

    Worker 0 has it, and its pod is the first one by name.
    """
    board = spec.engine_options.get("tensorboard")
    if not isinstance(board, Mapping) or spec.engine == _SHOWS_IT:
        return None
    port, namespace = board.get("port", BOARD_PORT), spec.engine_options.get("namespace", "default")
    kubectl = f"kubectl -n {shlex.quote(str(namespace))}"
    pod = f"$({kubectl} get pods -l {_JOB_LABEL}={job} -o name | head -n 1)"
    return f"{kubectl} port-forward {pod} {port}"
