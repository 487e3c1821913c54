"""Variables that Python, torch and numpy read when they start or are imported: a later change has no effect.

Found by recording what is read while torch 2.15 and our runtime are imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.spec.run import RunSpec

#: The beginnings of their names.
_READ_EARLY = (
    # Python, the loader of libraries, the C library
    *("PYTHON", "HOME", "LANG", "LC_", "TZ", "LD_", "GLIBC", "MALLOC_", "SSL_", "OPENSSL_"),
    # threads and arithmetic
    *("OMP_", "GOMP_", "GOTO_", "KMP_", "MKL", "OPENBLAS_", "ONEDNN_", "DNNL_", "NPY_", "NUMPY_"),
    # torch and its compilers
    *("TORCH", "PYTORCH_", "PT2_", "ATEN_", "AOT", "INDUCTOR_", "TRITON_", "KINETO_"),
    # CUDA's libraries
    *("CUDA_", "CUBLAS", "NVRTC_"),
)

#: Read when a process group begins, and set for each rank.
_READ_LATE = ("TORCHELASTIC_", "TORCH_NCCL_")

#: They may decide where code comes from, and the node host must start without the user's modules.
_OF_CODE = ("PYTHON", "LD_", "HOME")


def read_early(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Those that are set in an environment.

    Args:
        environment: of a process.
        folder: in which the process starts, for relative entries of PYTHONPATH.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and not name.startswith(_READ_LATE)
    }
    if path := found.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(os.path.join(folder, entry) for entry in path.split(os.pathsep))
    return found


def before_import(spec: RunSpec, workers: int) -> dict[str, str]:
    """Variables that a process needs before it imports torch for this run's ranks.

    Args:
        spec: the run.
        workers: how many workers share this machine.
    """
    of_run = {
        name: value
        for name, value in read_early(spec.env, "").items()
        if name == "PYTHONHASHSEED" or not name.startswith(_OF_CODE)
    }
    return {"OMP_NUM_THREADS": str(threads(workers * spec.workers.procs)), **of_run}


def threads(ranks: int) -> int:
    """How many threads a rank should use if so many share this machine's processors."""
    return max(1, (os.cpu_count() or 1) // ranks)
