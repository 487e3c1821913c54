"""Six verbs of the Kubernetes API, in and out as plain JSON. Authentication and TLS are kubernetes_asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio import client as kube
from kubernetes_asyncio import config
from kubernetes_asyncio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

from airflow_elastic.adapters.kube.errors import KubeError, Missing, NoSuchKind, error_of
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.spec.errors import EngineError

#: Within this an ordinary answer comes, or the server is taken to be out of reach.
ANSWER_SECONDS = 30.0

#: A watch that says nothing for so long is taken to be dead: bookmarks come every minute.
_SILENCE_SECONDS = 100.0

_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster; equal ones share a connection and its watches.

    Attributes:
        kubeconfig: path of a kubeconfig. Default: `KUBECONFIG`, else `~/.kube/config`, else, in a pod, its own
            service account.
        context: of the kubeconfig. Default: its current one.
        content: a kubeconfig itself, as JSON, where it comes from a connection and not from a file.
        in_cluster: the service account of the pod that this runs in, whatever kubeconfigs there are.
    """

    kubeconfig: str | None = None
    context: str | None = None
    content: str | None = None
    in_cluster: bool = False

    def __repr__(self) -> str:  # `content` may hold a token
        given = self.kubeconfig or ("a given kubeconfig" if self.content else "the default kubeconfig")
        return (
            "in-cluster"
            if self.in_cluster
            else f"{given}{f', context {self.context}' if self.context else ''}"
        )


async def connect(access: Access) -> Client:
    """A client. Nothing is sent yet.

    Raises:
        EngineError: there is no kubeconfig, or it cannot be used.
    """
    configuration = kube.Configuration()
    configuration.connection_pool_maxsize = 100
    try:
        if access.content is not None:
            await config.load_kube_config_from_dict(
                json.loads(access.content), context=access.context, client_configuration=configuration
            )
        elif access.in_cluster or (access.kubeconfig is None and not _default_kubeconfig()):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(
                config_file=access.kubeconfig,
                context=access.context,
                client_configuration=configuration,
                persist_config=False,
            )
    except (config.ConfigException, OSError, ValueError) as error:
        raise EngineError(
            f"no cluster can be reached with {access!r}: {error}; set KUBECONFIG, or name a kubeconfig and context"
        ) from error
    return Client(configuration)


def _default_kubeconfig() -> bool:
    places = KUBE_CONFIG_DEFAULT_LOCATION.split(":")
    return any(place and Path(place).expanduser().exists() for place in places)


class Client:
    """A connection to one API server, for any number of runs of one event loop.

    Every method raises a KubeError: for an answer of 400 and more, and where no answer comes.
    """

    def __init__(self, configuration: kube.Configuration) -> None:
        self._configuration = configuration
        self._rest = kube.ApiClient(configuration).rest_client

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._configuration.host)

    async def close(self) -> None:
        """Close its connections."""
        await self._rest.close()

    async def get(
        self, resource: Resource, namespace: str, name: str, part: str | None = None
    ) -> dict[str, Any]:
        """One object. Raises Missing where there is none."""
        what = f"read {resource.full_name} {name} in namespace {namespace}"
        return await self._json("GET", resource, resource.path(namespace, name, part), what)

    async def list(
        self, resource: Resource, namespace: str, *, labels: str = "", limit: int = 500
    ) -> tuple[list[dict[str, Any]], str]:
        """All objects with these labels, in pages of `limit`, and the resource version that a watch goes on from."""
        what = f"list {resource.full_name} in namespace {namespace}"
        items: list[dict[str, Any]] = []
        query = {"labelSelector": labels, "limit": str(limit)}
        while True:
            page = await self._json("GET", resource, resource.path(namespace), what, query=query)
            items += page["items"]
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            query = {**query, "continue": metadata["continue"]}

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; unknown fields are refused. Raises Conflict where there is one of that name."""
        what = f"create {resource.full_name} in namespace {namespace}"
        query = {"fieldValidation": "Strict", "fieldManager": "airflow-elastic"}
        return await self._json("POST", resource, resource.path(namespace), what, query=query, body=body)

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], part: str | None = None
    ) -> dict[str, Any]:
        """Merge `body` into an object: fields of it replace, None removes, lists are replaced whole."""
        what = f"change {resource.full_name}{f'/{part}' if part else ''} {name} in namespace {namespace}"
        path, query = resource.path(namespace, name, part), {"fieldManager": "airflow-elastic"}
        return await self._json("PATCH", resource, path, what, query=query, body=body, content=_MERGE)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete an object; no error where it is gone, or is another one than `uid` says."""
        body: dict[str, Any] = {"propagationPolicy": propagation}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        what = f"delete {resource.full_name} {name} in namespace {namespace}"
        try:
            await self._json("DELETE", resource, resource.path(namespace, name), what, body=body)
        except Missing:
            return
        except KubeError as error:
            if error.status != 409:
                raise

    async def log(
        self, namespace: str, pod: str, container: str, *, tail: int, previous: bool = False
    ) -> bytes:
        """The last `tail` lines of a container's output."""
        query = {"container": container, "tailLines": str(tail), "limitBytes": str(1 << 20)}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        what = f"read the log of pod {pod} in namespace {namespace}"
        return await self._bytes("GET", path, what, {**query, **({"previous": "true"} if previous else {})})

    async def allowed(self, verb: str, resource: Resource, namespace: str) -> bool:
        """Whether this connection has the right, as the API server itself says."""
        asked = {
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural.partition("/")[0],
            "subresource": resource.plural.partition("/")[2],
            "namespace": namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        said = json.loads(await self._bytes("POST", path, "ask for our rights", body=body))
        return bool(said["status"]["allowed"])

    async def knows(self, resource: Resource) -> bool:
        """Whether the cluster has this kind of object."""
        group = f"/apis/{resource.group}" if resource.group else "/api"
        try:
            said = json.loads(
                await self._bytes("GET", f"{group}/{resource.version}", "ask what the cluster knows")
            )
        except (Missing, NoSuchKind):
            return False
        return any(found["name"] == resource.plural for found in said["resources"])

    async def watch(
        self, resource: Resource, namespace: str, *, labels: str, version: str, seconds: int
    ) -> AsyncIterator[dict[str, Any]]:
        """Changes since `version`, as the server sends them, bookmarks too; ends after about `seconds`."""
        query = {
            "watch": "1",
            "labelSelector": labels,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        what = f"watch {resource.full_name} in namespace {namespace}"
        timeout = aiohttp.ClientTimeout(connect=ANSWER_SECONDS, sock_read=_SILENCE_SECONDS)
        with _as_kube_errors(what):
            async with await self._send(
                "GET", resource.path(namespace), query, None, None, timeout
            ) as answer:
                if answer.status >= 400:
                    raise _named(error_of(answer.status, await answer.read(), what), resource)
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise error_of(status.get("code", 500), json.dumps(status).encode(), what)
                    yield event

    async def _json(
        self,
        method: str,
        resource: Resource,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str | None = None,
    ) -> dict[str, Any]:
        try:
            plain: dict[str, Any] = json.loads(await self._bytes(method, path, what, query, body, content))
        except KubeError as error:
            raise _named(error, resource) from None
        return plain

    async def _bytes(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str | None = None,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        with _as_kube_errors(what):
            async with await self._send(method, path, query, body, content, timeout) as answer:
                data = await answer.read()
                if answer.status >= 400:
                    raise error_of(answer.status, data, what)
                return data

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content: str | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content or "application/json"}
        # Asked for each time: it renews a token that is about to expire.
        token = (await self._configuration.auth_settings()).get("BearerToken")
        if token:
            headers["authorization"] = token["value"]
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        answer: aiohttp.ClientResponse = await self._rest.request(
            method, url, headers=headers, body=body, _preload_content=False, _request_timeout=timeout
        )
        return answer


def _named(error: KubeError, resource: Resource) -> KubeError:
    if isinstance(error, NoSuchKind) and resource.needs:
        return NoSuchKind(
            f"{error}: {resource.full_name} comes with {resource.needs}; install that, or choose another engine",
            404,
        )
    return error


@contextlib.contextmanager
def _as_kube_errors(what: str) -> Any:
    """What a connection can do wrong, as KubeErrors: by class only, as texts of URLs may name credentials."""
    try:
        yield
    except TimeoutError as error:
        raise KubeError(f"cannot {what} for now: the API server does not answer") from error
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise KubeError(f"cannot {what} for now: {type(error).__name__}: {error}") from error
