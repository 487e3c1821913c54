"""The cluster that KUBECONFIG names, for all tests of this folder: they make namespaces there, and some break it.

A test that has `shared_folder` finds it mounted by `pod_options` too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client, Resource, connect
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.tensorstack import PYTORCHTRAININGJOBS
from airflow_elastic.spec.errors import EngineError
from tests.support.kubernetes import dlrover, kube
from tests.support.kubernetes.cluster import ClusterEngine, documented_rights
from tests.support.runs.faults import Faults

CRDS = Path(__file__).parents[1] / "support" / "crds"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    why = _unreachable() if ours else None
    for item in ours:
        item.add_marker("cluster")
        quick = getattr(getattr(item, "cls", None), "quick", None)
        if quick is not None and _name(item) not in quick:
            item.add_marker("slow")
        if _is_further_case(item):
            item.add_marker("slow")
        if _is_promised(item):  # on one engine today, and on another tomorrow
            item.add_marker(pytest.mark.siblings(f"{ClusterEngine.__name__}::{_name(item)}"))
        if why:  # a mark, and no fixture that skips: then a report has one line a file, not one a test
            item.add_marker(pytest.mark.skip(reason=why))


def _name(item: pytest.Item) -> str:
    return str(getattr(item, "originalname", None) or "")


def _is_promised(item: pytest.Item) -> bool:
    """Whether it is what every engine promises, in the words of all of them."""
    own, common = (getattr(cls, _name(item), None) for cls in (getattr(item, "cls", None), ClusterEngine))
    return common is not None and own is common


def _is_further_case(item: pytest.Item) -> bool:
    """Of what every engine promises all cases are tried on `job` with each commit, and the first one on the others."""
    cls, case = getattr(item, "cls", None), getattr(item, "callspec", None)
    promised = hasattr(ClusterEngine, _name(item))
    return bool(promised and case and any(case.indices.values()) and getattr(cls, "engine_name", "") != "job")


def _unreachable() -> str | None:
    given = os.environ.get("KUBECONFIG")
    why = "KUBECONFIG is not set"
    if given:
        try:
            kube.at_once(_ask(Access(kubeconfig=given)))
            return None
        except EngineError as error:
            why = f"the one that KUBECONFIG names does not answer: {error}"
    return f"needs a Kubernetes cluster for tests, and {why} (docs/tutorials/first-cluster.md has a recipe for kind)"


async def _ask(access: Access) -> None:
    client = await connect(access)
    try:
        await client.knows(PODS)
    finally:
        await client.close()


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    """What KUBECONFIG names: a cluster that answers."""
    return os.environ["KUBECONFIG"]


@pytest.fixture(scope="session")
def access(kubeconfig: str) -> Access:
    """The administrator's."""
    return Access(kubeconfig=kubeconfig)


@pytest.fixture
async def client(access: Access) -> AsyncIterator[Client]:
    """A client of ours, as the administrator."""
    made = await connect(access)
    yield made
    await made.close()


@pytest.fixture
async def engine_name(request: pytest.FixtureRequest, client: Client) -> str:
    """The engine that `on_every_engine` says; skipped where its operator is not in the cluster."""
    found = find_engine(str(request.param))
    assert isinstance(found, KubeEngine)
    if not await client.knows(found.kind.resource):
        pytest.skip(f"install {found.kind.resource.needs} in the cluster to run this")
    return found.name


@pytest.fixture
def namespace(access: Access, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new one, that goes when the test has ended; nobody waits for that."""
    name = kube.namespace_name(request.node.name)
    kube.at_once(kube.create_namespace(access, name))
    yield name
    kube.at_once(kube.delete_namespace(access, name))


@pytest.fixture
def account(access: Access, namespace: str) -> Callable[..., Awaitable[kube.Account]]:
    """Makes service accounts in the namespace: `await account(*rules)`, rules as a Role has them."""

    def make(*rules: dict[str, Any]) -> Awaitable[kube.Account]:
        return kube.create_account(access, namespace, rules)

    return make


@pytest.fixture
async def door(client: Client) -> AsyncIterator[kube.Door]:
    """A way to the API server that only this test uses, and may shut."""
    made = kube.Door(client.server)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def pod_options(kubeconfig: str, namespace: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """`engine_options` of pods that can run our training scripts."""
    if not os.environ.get(kube.IMAGE) and not os.environ.get(kube.CLUSTER):
        pytest.skip(
            f"set {kube.IMAGE} to an image that can run our training scripts, and {kube.PYTHON}, to run this"
        )
    options: dict[str, Any] = {
        "image": os.environ.get(kube.IMAGE, "localhost/base:1"),
        "python": os.environ.get(kube.PYTHON, sys.executable),
        "namespace": namespace,
        "kubeconfig": kubeconfig,
    }
    if "shared_folder" in request.fixturenames:
        folder = str(request.getfixturevalue("shared_folder"))
        options["volumes"] = [{"mount_path": folder, "host_path": folder}]
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("engine_name") == "elasticjob":
        options["master"] = request.getfixturevalue("job_master")
    return options


@pytest.fixture
def dlrover_operator(access: Access, namespace: str) -> Iterator[dlrover.Operator]:
    """Who stands in for DLRover's operator, at work in the namespace."""
    with dlrover.operating_beside(access, namespace) as operator:
        yield operator


@pytest.fixture
def job_master(access: Access, namespace: str, dlrover_operator: dlrover.Operator) -> dict[str, Any]:
    """What options say of DLRover's job master, with its documented rights; and its operator is at work."""
    python = os.environ.get(dlrover.PYTHON)
    if not python:
        pytest.skip(dlrover.NEEDED)
    rights = documented_rights("elasticjob, master")
    made = kube.at_once(kube.create_account(access, namespace, rights))
    master: dict[str, Any] = dlrover.options(python, made)["master"]
    return master


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that this machine and every pod can write, at the same path."""
    parent = os.environ.get(kube.SHARED)
    if not parent and not os.environ.get(kube.CLUSTER):
        pytest.skip(
            f"set {kube.SHARED} to a folder that this machine and all nodes have at one path to run this"
        )
    folder = Path(tempfile.mkdtemp(prefix="elastic-test-", dir=parent or "/var/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # pods that end later may still write


@pytest.fixture(scope="session")
def kubectl() -> kube.Kubectl:
    """`kubectl(*words) -> str`, for what our own client does not do."""
    command = shlex.split(os.environ.get(kube.KUBECTL, ""))
    if not command and (cluster := os.environ.get(kube.CLUSTER)):
        command = [cluster, "kubectl"]
    if not command and shutil.which("kubectl"):
        command = ["kubectl"]
    if not command:
        pytest.skip(f"install kubectl, or set {kube.KUBECTL} to the command, to run this")
    return kube.Kubectl(tuple(command))


@pytest.fixture
def faults(kubeconfig: str) -> Iterator[Faults]:
    """Breaks the cluster; all is mended when the test has ended."""
    program = os.environ.get(kube.CLUSTER)
    if not program:
        pytest.skip(f"set {kube.CLUSTER} to the program that can break the cluster to run this")
    made = Faults(program)
    if os.path.realpath(kubeconfig) != os.path.realpath(made.kubeconfig()):
        pytest.skip(f"{kube.CLUSTER} breaks another cluster than the one that KUBECONFIG names")
    yield made
    made.heal()


@pytest.fixture(scope="module", params=["reference", "guide"])
def form(request: pytest.FixtureRequest, kubectl: kube.Kubectl) -> Iterator[str]:
    """A cluster that has PyTorchTrainingJobs in this form. Not for one with TensorStack: it goes with all jobs."""
    name = PYTORCHTRAININGJOBS.full_name
    if kubectl("get", "crd", name, "--ignore-not-found").strip():
        pytest.skip(f"the cluster has {name}, which this would replace")
    file = str(CRDS / f"pytorchtrainingjobs-{request.param}.yaml")
    kubectl("apply", "--server-side", "-f", file)
    try:
        kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{name}")
        yield request.param
    finally:
        kubectl("delete", "crd", name, "--timeout=60s")


PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")


@pytest.fixture
async def priority(client: Client) -> AsyncIterator[str]:
    """A PriorityClass whose pods wait for room instead of having others killed."""
    name = f"urgent-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
        "preemptionPolicy": "Never",
    }
    await client.create(PRIORITIES, "", body)
    yield name
    await client.delete(PRIORITIES, "", name)
