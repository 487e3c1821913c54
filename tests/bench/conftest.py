"""What every bench stands on: modules that are compiled once, as an installation has them."""

from __future__ import annotations

import compileall
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_elastic
from tests.cluster.conftest import (  # noqa: F401
    access,
    client,
    dlrover_operator,
    faults,
    job_master,
    kubeconfig,
    namespace,
    pod_options,
    priority,
    shared_folder,
)

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session", autouse=True)
def ours_compiled(request: pytest.FixtureRequest) -> None:
    """Bytecode of our own package where Python may write none: else each process that a bench starts compiles it."""
    if sys.dont_write_bytecode and any(item.get_closest_marker("bench") for item in request.session.items):
        compileall.compile_dir(*airflow_elastic.__path__, quiet=1)


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of bytecode where torch is installed without: else every start of a process compiles torch anew.

    That takes two thirds of the time to the first step, of ours and of the floor alike, and hides everything else.
    """
    torch = importlib.util.find_spec("torch")
    with pytest.MonkeyPatch.context() as patch:
        if torch and torch.cached and not os.path.exists(torch.cached):
            sessions = tmp_path_factory.getbasetemp().parent
            if "PYTEST_XDIST_WORKER" in os.environ:  # whose folder lies in that of the session
                sessions = sessions.parent
            cache = sessions / "bytecode"  # of all sessions: filling it takes a while
            patch.setenv("PYTHONPYCACHEPREFIX", str(cache))
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            start = "import objects, torch.distributed.run; objects.build()"
            subprocess.run([sys.executable, "-c", start], cwd=SCRIPTS, check=True)
        yield
