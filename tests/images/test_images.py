"""The images of docker/: really built by buildah, which needs no daemon, and what they are for really done in them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "support" / "scripts"

#: Names the base of both images: a Debian or Ubuntu with Python 3.11 or later and its venv.
BASE = "ELASTIC_TEST_BASE_IMAGE"
#: Further words for `buildah build`, such as --secret id=pip.conf,src=...
OPTIONS = "ELASTIC_TEST_BUILD_OPTIONS"

_MISSING = [
    *([] if shutil.which("buildah") else ["install buildah"]),
    *([] if os.environ.get(BASE) else [f"set {BASE} to an image with Python and its venv"]),
]
pytestmark = [
    pytest.mark.images,
    pytest.mark.slow,  # torch and CUDA's libraries alone are 3 GB to fetch
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(_MISSING), reason=f"{' and '.join(_MISSING)} to run this"),
]


class Container:
    """A container of an image; what runs in it runs as the image's own user, with its environment."""

    def __init__(self, image: str) -> None:
        self.name = buildah("from", "--pull-never", image)

    def run(self, *words: str, ok: bool = True, **env: str) -> str:
        """What the command says, all of it."""
        options = [f"--env={name}={value}" for name, value in env.items()]
        done = subprocess.run(
            ["buildah", "run", f"--volume={SCRIPTS}:/app:ro", *options, self.name, "--", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is ok, done.stdout
        return done.stdout.strip()

    def python(self, code: str) -> str:
        return self.run("python", "-c", code)


def buildah(*words: str) -> str:
    done = subprocess.run(["buildah", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an image is built from: the checkout's own, but for dist/, which stays as it is."""
    folder = tmp_path_factory.mktemp("context")
    for name in ("docker", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / ".dockerignore", folder)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder / "dist")]
    subprocess.run([*build, str(ROOT)], check=True)
    return folder


def _container(context: Path, name: str) -> Iterator[Container]:
    identity = context / f"{name}.id"
    options = [f"--build-arg=BASE={os.environ[BASE]}", *shlex.split(os.environ.get(OPTIONS, ""))]
    dockerfile = f"--file={context}/docker/{name}.Dockerfile"
    command = [
        "buildah",
        "build",
        "--pull-never",
        f"--iidfile={identity}",
        dockerfile,
        *options,
        str(context),
    ]
    subprocess.run(command, check=True)  # what it says is in pytest's report
    image = identity.read_text()
    container = Container(image)
    yield container
    buildah("rm", container.name)
    buildah("rmi", image)


@pytest.fixture(scope="module")
def trainer(context: Path) -> Iterator[Container]:
    yield from _container(context, "trainer")


@pytest.fixture(scope="module")
def airflow(context: Path) -> Iterator[Container]:
    yield from _container(context, "airflow")


# -- the trainer's -------------------------------------------------------------------------------------------------


def test_the_trainer_has_what_workers_need_and_no_airflow(trainer: Container) -> None:
    assert trainer.run("id", "--user") == "10001"
    assert trainer.python("import torch, airflow_elastic.runtime; print(torch.version.cuda)") != "None"
    assert trainer.python("import importlib.util as u; print(u.find_spec('airflow'))") == "None"
    assert trainer.run("pip", "check") == "No broken requirements found."


def test_the_trainer_trains(trainer: Container) -> None:
    uri = "/home/trainer/run"
    command = ["/app/train.py", "--epochs=1"]
    trainer.run(
        "airflow-elastic", "run", "--workers", "1", "--every-steps", "5", "--uri", uri, "--", *command
    )
    status = json.loads(trainer.run("airflow-elastic", "status", uri, "--json"))
    assert (status["state"], status["step"]) == ("succeeded", 10)
    trainer.run("airflow-elastic", "verify", uri)


def test_the_trainer_is_a_pods_worker(trainer: Container) -> None:
    """As far as that goes without a cluster: it knows what it needs, and ends where there is no such job."""
    agent = ["python", "-P", "-m", "airflow_elastic.runtime.pod"]
    assert "AIRFLOW_ELASTIC_RUN_URI" in trainer.run(*agent, ok=False)
    trainer.run(
        *agent,
        ok=False,
        AIRFLOW_ELASTIC_RUN_URI="/home/trainer/none",
        AIRFLOW_ELASTIC_JOB="none-1",
        AIRFLOW_ELASTIC_ATTEMPT="1",
        AIRFLOW_ELASTIC_INDEX="0",
        AIRFLOW_ELASTIC_POD_IP="127.0.0.1",
        AIRFLOW_ELASTIC_TERMINATION="/home/trainer/termination",
    )
    ended = json.loads(trainer.run("cat", "/home/trainer/termination"))
    assert ended["outcome"] == "lost"
    assert ended["reason"] == "node-0 did not start: it is not among the workers of the job"


# -- Airflow's -----------------------------------------------------------------------------------------------------


def test_airflow_has_the_provider_and_no_torch(airflow: Container) -> None:
    assert airflow.run("id", "--user") == "50000"
    assert "airflow-elastic" in airflow.run("airflow", "providers", "list")
    assert airflow.run("airflow-elastic", "--help").startswith("Usage: airflow-elastic")
    airflow.python("import boto3, kubernetes_asyncio, airflow_elastic.operators")
    assert airflow.python("import importlib.util as u; print(u.find_spec('torch'))") == "None"
    assert airflow.run("pip", "check") == "No broken requirements found."
