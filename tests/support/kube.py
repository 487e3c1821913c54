"""A Kubernetes cluster for tests: namespaces, accounts with few rights, outages and faults. No test needs `kubectl`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kubernetes_asyncio import client as kube

from airflow_elastic.adapters.kube import Access, Client, Resource
from airflow_elastic.adapters.kube.access import configuration_of
from tests.support.kube_server import kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

T = TypeVar("T")

KUBECTL = "ELASTIC_TEST_KUBECTL"  # the command, where it is not `kubectl` on the PATH
CLUSTER = "ELASTIC_TEST_CLUSTER"  # the program that breaks and mends the cluster
IMAGE = "ELASTIC_TEST_IMAGE"  # of pods that run our training scripts
PYTHON = "ELASTIC_TEST_PYTHON"  # the interpreter in that image, with torch and this checkout
SHARED = "ELASTIC_TEST_SHARED"  # a folder that this machine and every node have at the same path

PATIENCE_SECONDS = 120.0
_LABELS = {"app.kubernetes.io/managed-by": "airflow-elastic-tests"}


def at_once(made: Awaitable[T]) -> T:
    """The result of a coroutine, for fixtures that synchronous and asynchronous tests share."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(made)
    finally:
        loop.close()


async def until(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The first true answer; an object that is not there yet is looked for again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := await look()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        await asyncio.sleep(0.05)
    return answer


async def phase_of(
    client: Client, resource: Resource, namespace: str, name: str, *wanted: str
) -> dict[str, Any]:
    """An object once its phase is one of these."""

    async def look() -> dict[str, Any] | None:
        found = await client.get(resource, namespace, name)
        return found if found.get("status", {}).get("phase") in wanted else None

    found: dict[str, Any] = await until(look, f"{name} to be {' or '.join(wanted)}")
    return found


# -- namespaces and accounts -------------------------------------------------------------------------------------------


def namespace_name(test: str) -> str:
    """A new legal name in which the test's name can be seen."""
    slug = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")
    return f"t-{slug[:40].strip('-')}-{secrets.token_hex(3)}"


async def create_namespace(access: Access, name: str) -> None:
    """Make one that pods can be created in."""
    async with _core(access) as core:
        await core.create_namespace({"metadata": {"name": name, "labels": _LABELS}})

        async def account() -> bool:
            with contextlib.suppress(kube.ApiException):
                await core.read_namespaced_service_account("default", name)
                return True
            return False

        await until(account, f"the service account of namespace {name}")


async def delete_namespace(access: Access, name: str) -> None:
    """Begin to delete one and all that is in it."""
    async with _core(access) as core:
        await core.delete_namespace(name)


@dataclass(frozen=True)
class Account:
    """A service account: who asks, and with which rights."""

    user: str
    access: Access
    _config: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Its own, in its namespace."""
        return self.user.rpartition(":")[2]

    @property
    def token(self) -> str:
        """Its password."""
        return str(self._config["users"][0]["user"]["token"])

    def through(self, door: Door) -> Access:
        """The same, by way of a door."""
        cluster = self._config["clusters"][0]["cluster"]
        name = {"tls-server-name": urlsplit(cluster["server"]).hostname}
        config = {
            **self._config,
            "clusters": [{"name": "it", "cluster": {**cluster, **name, "server": door.url}}],
        }
        return Access(content=json.dumps(config))


async def create_account(access: Access, namespace: str, rules: Sequence[dict[str, Any]]) -> Account:
    """A service account with these rules of a Role, in its own namespace."""
    name = f"account-{secrets.token_hex(3)}"
    metadata = {"metadata": {"name": name}}
    async with _core(access) as core:
        rbac = kube.RbacAuthorizationV1Api(core.api_client)
        await core.create_namespaced_service_account(namespace, metadata)
        await rbac.create_namespaced_role(namespace, {**metadata, "rules": list(rules)})
        binding = {
            **metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        await rbac.create_namespaced_role_binding(namespace, binding)
        made = await core.create_namespaced_service_account_token(name, namespace, {"spec": {}})
        configuration = core.api_client.configuration
    given = configuration.ssl_ca_cert
    trust = (
        {"certificate-authority": given}
        if given
        else {"insecure-skip-tls-verify": not configuration.verify_ssl}
    )
    config = kubeconfig(configuration.host, user={"token": made.status.token}, **trust)
    return Account(f"system:serviceaccount:{namespace}:{name}", Access(content=json.dumps(config)), config)


@contextlib.asynccontextmanager
async def _core(access: Access) -> AsyncIterator[kube.CoreV1Api]:
    async with kube.ApiClient(await configuration_of(access)) as api:
        yield kube.CoreV1Api(api)


# -- outages that only one test sees -----------------------------------------------------------------------------------


class Door:
    """A way to an API server that can be shut: whoever goes through it sees an outage, and nobody else."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._place = parts.hostname, parts.port or 443
        self._scheme = parts.scheme
        self._port = 0
        self._listening: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._free = asyncio.Event()
        self._free.set()

    @property
    def url(self) -> str:
        """Of the API server as it is seen through this door."""
        return f"{self._scheme}://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._passing)

    async def start(self) -> None:
        """Let through who comes."""
        self._listening = await asyncio.start_server(self._pass, "127.0.0.1", self._port)
        self._port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break off all connections, and refuse new ones."""
        if self._listening is not None:
            self._listening.close()
        self._listening = None
        for task in self._passing:
            task.cancel()
        if self._passing:
            await asyncio.wait([*self._passing])

    def pause(self) -> None:
        """Keep and accept connections, and let nothing through."""
        self._free.clear()

    def resume(self) -> None:
        """Let through what has been waiting."""
        self._free.set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        out: asyncio.StreamWriter | None = None
        try:
            back, out = await asyncio.open_connection(*self._place)
            ways = {asyncio.ensure_future(self._copy(*way)) for way in ((reader, out), (back, writer))}
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # a task of a server of streams has nobody to tell
        finally:
            for end in filter(None, (writer, out)):
                end.transport.abort()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            self._passing.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._free.wait()
                writer.write(data)
                await writer.drain()


# -- faults of the cluster itself --------------------------------------------------------------------------------------

#: What ends a fault; of the others a node recovers by itself.
_NODE_MENDS = {
    "power-off": "power-on",
    **{f"stop-{name}": f"start-{name}" for name in ("kubelet", "runtime", "proxy")},
    **dict.fromkeys(("partition", "loss", "bandwidth", "freeze", "throttle", "gpu-unhealthy"), "heal"),
}
_SERVICE_MENDS = {"stop": "start", "pause": "resume"}
_NEVER = "2000-01-01T00:00:00Z"
_POD_FAULTS_THAT_STAY = ("freeze", "throttle", "partition")


class Faults:
    """Breaks the cluster by its own program, and mends what it has broken: others may break it at the same time."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._services: dict[str, str] = {}
        self._mends: list[tuple[str, ...]] = []
        self._nodes: set[str] = set()
        self._gpus: dict[str, int] = {}

    def node(self, node: str, fault: str, value: object = None) -> None:
        """Do something to a node: see `cluster node-fault --help`."""
        self._begin()
        self._nodes.add(node)
        if fault in _NODE_MENDS:
            self._mends.append(("node-fault", node, _NODE_MENDS[fault]))
        self._run("node-fault", node, fault, *_given(value))

    def pod(self, namespace: str, pod: str, fault: str, value: object = None) -> None:
        """Do something to a running pod: see `cluster pod-fault --help`."""
        if fault in _POD_FAULTS_THAT_STAY:
            self._mends.append(("pod-fault", "-n", namespace, pod, "heal"))
        self._run("pod-fault", "-n", namespace, pod, fault, *_given(value))

    def apiserver(self, verb: str) -> None:
        """Stop, start, kill, pause or resume the API server, for everybody."""
        self.control_plane("kube-apiserver", verb)

    def control_plane(self, service: str, verb: str) -> None:
        """Do so to etcd, the API server, the controllers, the scheduler, DNS or this machine's way to the cluster."""
        self._begin()
        command = ("apiserver",) if service == "kube-apiserver" else ("control-plane", service)
        if verb in _SERVICE_MENDS:
            self._services[service] = _SERVICE_MENDS[verb]
        self._run(*command, verb)

    def heal(self) -> None:
        """End the faults that are on, and wait until their nodes are at work again."""
        failures = []
        restarted = {"etcd", "kube-apiserver"} & self._services.keys()
        for service, verb in [*self._services.items()]:
            command = ("apiserver",) if service == "kube-apiserver" else ("control-plane", service)
            failures += self._try(*command, verb)
        for mend in dict.fromkeys(reversed(self._mends)):
            said = self._try(*mend)
            failures += said if mend[0] != "pod-fault" else []  # the pod may be gone, and its faults with it
        if restarted:  # after an outage kubelets take their time, unless they begin anew
            self._nodes |= self._gpus.keys()
            for node in self._nodes:
                failures += self._try("node-fault", node, "kill-kubelet")
        mended = datetime.now(UTC)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not failures and (tired := self._nodes - self._at_work(mended)):
            if time.monotonic() > deadline:
                failures.append(f"not at work again: {', '.join(sorted(tired))}")
            time.sleep(0.2)
        self._services, self._mends, self._nodes, self._gpus = {}, [], set(), {}
        assert not failures, f"the cluster may not be whole; `cluster up` mends it: {failures}"

    def _begin(self) -> None:
        """Keep in mind how many GPUs the nodes have, before the first fault."""
        if not self._gpus:
            self._gpus = {one["metadata"]["name"]: _gpus(one) for one in self._get("nodes")}

    def _at_work(self, since: datetime) -> set[str]:
        """The nodes that are ready and have their GPUs, by their own words after `since`."""
        found = self._get("nodes,leases.coordination.k8s.io", "-n", "kube-node-lease")
        leases = {
            one["metadata"]["name"]: one["spec"]["renewTime"] for one in found if one["kind"] == "Lease"
        }
        nodes = {one["metadata"]["name"]: one for one in found if one["kind"] == "Node"}
        return {
            name
            for name, node in nodes.items()
            if datetime.fromisoformat(leases.get(name, _NEVER)) > since
            and _gpus(node) >= self._gpus.get(name, 0)
            and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
        }

    def _get(self, *what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._run("kubectl", "get", *what, "-o", "json"))["items"]
        return found

    def audit(self, *, user: str | None = None, since: str | None = None) -> str:
        """Lines `COUNT USER VERB RESOURCE`: what the API server has answered."""
        options = {"--user": user, "--since": since}
        return self._run(
            "audit", *(word for name, value in options.items() if value for word in (name, value))
        )

    def answered(self, user: str) -> list[dict[str, Any]]:
        """The audit log's entries of what this user has asked for, oldest first."""
        log = self.kubeconfig().parent / "control-plane" / "audit.log"
        found = (json.loads(line) for line in log.read_text().splitlines() if user in line)
        ours = [entry for entry in found if entry["user"]["username"] == user]
        return sorted(ours, key=lambda entry: str(entry["requestReceivedTimestamp"]))

    def kubeconfig(self) -> Path:
        """Of the cluster that is broken."""
        return Path(self._run("kubeconfig").strip())

    def _run(self, *words: str) -> str:
        done = _typed(self._program, *words)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def _try(self, *words: str) -> list[str]:
        done = _typed(self._program, *words)
        return [f"{' '.join(words)}: {done.stderr.strip()}"] if done.returncode else []


@dataclass(frozen=True)
class Kubectl:
    """`kubectl(*words)` returns what it says; a failure is the test's."""

    command: tuple[str, ...]

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        done = _typed(*self.command, *words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.strip()}"
        return done.stdout


def _gpus(node: dict[str, Any]) -> int:
    return int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))


def _given(value: object) -> list[str]:
    return [] if value is None else [str(value)]


def _typed(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
    )
