"""A Kubernetes cluster for tests: namespaces, accounts with few rights, outages and faults. No test needs `kubectl`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kubernetes_asyncio import client as kube

from airflow_elastic.adapters.kube import Access, Client, Missing, Resource
from airflow_elastic.adapters.kube.access import configuration_of
from airflow_elastic.adapters.kube.resources import PODS
from tests.support.kubernetes.kube_server import kubeconfig
from tests.support.machine.patience import PATIENCE_SECONDS, until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

T = TypeVar("T")

KUBECTL = "ELASTIC_TEST_KUBECTL"  # the command, where it is not `kubectl` on the PATH
CLUSTER = "ELASTIC_TEST_CLUSTER"  # the program that breaks and mends the cluster
IMAGE = "ELASTIC_TEST_IMAGE"  # of pods that run our training scripts
PYTHON = "ELASTIC_TEST_PYTHON"  # the interpreter in that image, with torch and this checkout
SHARED = "ELASTIC_TEST_SHARED"  # a folder that this machine and every node have at the same path

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")

_LABELS = {"app.kubernetes.io/managed-by": "airflow-elastic-tests"}


def at_once(made: Awaitable[T]) -> T:
    """The result of a coroutine, for fixtures that synchronous and asynchronous tests share."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(made)
    finally:
        loop.close()


async def phase_of(
    client: Client, resource: Resource, namespace: str, name: str, *wanted: str
) -> dict[str, Any]:
    """An object once its phase is one of these."""

    async def look() -> dict[str, Any] | None:
        found = await client.get(resource, namespace, name)
        return found if found.get("status", {}).get("phase") in wanted else None

    found: dict[str, Any] = await until_async(look, f"{name} to be {' or '.join(wanted)}")
    return found


async def gone(client: Client, resource: Resource, namespace: str, name: str) -> None:
    """Wait until there is no object of this name."""

    async def look() -> bool:
        try:
            await client.get(resource, namespace, name)
        except Missing:
            return True
        return False

    await until_async(look, f"{resource.kind} {name} to be gone")


# -- namespaces and accounts -------------------------------------------------------------------------------------------


def namespace_name(test: str) -> str:
    """A new legal name in which the test's name can be seen."""
    slug = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")
    return f"t-{slug[:40].strip('-')}-{secrets.token_hex(3)}"


_NOBODY = {"metadata": {"name": "nobody"}, "spec": {"containers": [{"name": "main", "image": "any"}]}}


async def create_namespace(access: Access, name: str) -> None:
    """Make one that pods can be created in."""
    async with _core(access) as core:
        await core.create_namespace({"metadata": {"name": name, "labels": _LABELS}})

        async def account() -> bool:
            with contextlib.suppress(kube.ApiException):
                await core.read_namespaced_service_account("default", name)
                return True
            return False

        async def webhooks() -> bool:
            try:
                await core.create_namespaced_pod(name, _NOBODY, dry_run="All")
            except kube.ApiException as error:
                if error.status == 404 or "not found" in str(error.body):
                    return False
            return True

        await until_async(account, f"the service account of namespace {name}")
        await until_async(webhooks, f"webhooks of the cluster that know of namespace {name}")


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


@dataclass(frozen=True)
class Kubectl:
    """`kubectl(*words)` returns what it says; a failure is the test's."""

    command: tuple[str, ...]

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        done = typed(*self.command, *words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.strip()}"
        return done.stdout


def typed(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command that was run to its end, whatever that was."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
    )


class Watching:
    """The names of all pods that come or change meanwhile."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._names: set[str] = set()

    async def __aenter__(self) -> set[str]:
        _, version = await self._client.list(PODS, self._namespace)
        self._task = asyncio.create_task(self._look(version))
        return self._names

    async def _look(self, version: str) -> None:
        watch = self._client.watch(PODS, self._namespace, labels="", version=version, seconds=300)
        async with watch as events:
            async for event in events:
                self._names.add(event["object"]["metadata"].get("name", ""))
                self._names.discard("")

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
