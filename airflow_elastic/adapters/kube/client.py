"""Six verbs of the Kubernetes API, in and out as plain JSON. kubernetes_asyncio does authentication and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio import client as kube
from kubernetes_asyncio.config import ConfigException

from airflow_elastic.adapters.kube.access import Access, configuration_of
from airflow_elastic.adapters.kube.errors import (
    Conflict,
    Gone,
    KubeError,
    Missing,
    NoSuchKind,
    error_of,
    named,
    parsed,
)
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.spec.errors import EngineError

log = logging.getLogger(__name__)

#: The time limit for an ordinary answer, in seconds; then the server counts as out of reach.
ANSWER_SECONDS = 30.0

#: A watch without a message for so long counts as dead, because bookmarks come every minute.
SILENCE_SECONDS = 100.0

_MERGE = "application/merge-patch+json"
_MERGE_BY_NAME = "application/strategic-merge-patch+json"

_RIGHTS, _KINDS = "ask for our rights", "ask what the cluster knows"

_WRITE = {"fieldValidation": "Strict", "fieldManager": "airflow-elastic"}


async def connect(access: Access) -> Client:
    """A client. Nothing is sent yet.

    Raises:
        EngineError: there is no kubeconfig, or it cannot be used.
    """
    configuration = await configuration_of(access)
    try:
        return Client(access, configuration)
    except (OSError, ValueError) as error:  # certificate files without a certificate
        raise EngineError(
            f"no cluster can be reached with {access!r}: its certificates cannot be read: {error}"
        ) from None


class Client:
    """A connection to one API server, for any number of runs of one event loop.

    Every method raises a KubeError: for an answer of 400 and more, and where no answer comes.
    """

    def __init__(self, access: Access, configuration: kube.Configuration) -> None:
        self._access, self._configuration = access, configuration
        self._rest = kube.ApiClient(configuration).rest_client
        self._renewing = asyncio.Lock()

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
        what = f"read {resource.full_name} {name}{_within(namespace)}"
        return await self._json("GET", resource, resource.path(namespace, name, part), what)

    async def list(
        self,
        resource: Resource,
        namespace: str,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 500,
        slim: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> tuple[list[dict[str, Any]], str]:
        """All objects with these labels and fields, in pages of `limit`; and the version from which a watch goes on.

        `slim` reduces each object to what is needed, page by page.
        """
        what = f"list {resource.full_name}{_within(namespace)}"
        items: list[dict[str, Any]] = []
        wanted = {"labelSelector": labels, **({"fieldSelector": fields} if fields else {})}
        query = {**wanted, "limit": str(limit)}
        while True:
            try:
                page = await self._json("GET", resource, resource.path(namespace), what, query=query)
            except Gone:  # the pages have expired: list all objects at once, as other clients do
                items, query = [], wanted
                continue
            items += map(slim, page["items"] or ())  # Go writes an empty list as null
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            query = {**query, "continue": metadata["continue"]}

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object; unknown fields are refused. Raises Conflict where there is one of that name.

        With `dry_run` none is created, and the answer is the object as it would be.
        """
        what = f"create {resource.full_name} in namespace {namespace}"
        query = {**_WRITE, "dryRun": "All"} if dry_run else _WRITE
        return await self._json("POST", resource, resource.path(namespace), what, query=query, body=body)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        part: str | None = None,
        *,
        by_name: bool = False,
    ) -> dict[str, Any]:
        """Merge `body` into an object: fields replace, None removes, lists are replaced as a whole.

        `by_name` merges lists entry by entry; for Kubernetes' own kinds only. Unknown fields are refused: a cluster
        that lacks such a field would ignore it silently.
        """
        what = f"change {resource.full_name}{f'/{part}' if part else ''} {name} in namespace {namespace}"
        path = resource.path(namespace, name, part)
        content = _MERGE_BY_NAME if by_name else _MERGE
        return await self._json("PATCH", resource, path, what, query=_WRITE, body=body, content=content)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        grace_seconds: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete an object; no error if it is gone, or has another uid than `uid`.

        Raises Conflict where it has changed since `version`, its resourceVersion.
        """
        body: dict[str, Any] = {"propagationPolicy": propagation}
        known = {"uid": uid, "resourceVersion": version}
        if any(known.values()):
            body["preconditions"] = {name: value for name, value in known.items() if value}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        what = f"delete {resource.full_name} {name} in namespace {namespace}"
        try:
            await self._json("DELETE", resource, resource.path(namespace, name), what, body=body)
        except Missing:
            return
        except Conflict:
            if uid is None or version is not None:  # it may be this object, and could not be deleted
                raise

    async def delete_all(
        self, resource: Resource, namespace: str, *, labels: str = "", fields: str = "", grace_seconds: int
    ) -> None:
        """Delete all objects with these labels and fields."""
        if not labels and not fields:
            raise ValueError(
                "a selector is required: without one, this would delete all objects of the namespace"
            )
        what = f"delete {resource.full_name} in namespace {namespace}"
        body = {"gracePeriodSeconds": grace_seconds, "propagationPolicy": "Background"}
        path = resource.path(namespace)
        wanted = {"labelSelector": labels, **({"fieldSelector": fields} if fields else {})}
        await self._json("DELETE", resource, path, what, query=wanted, body=body)

    async def log(
        self, namespace: str, pod: str, container: str, *, tail: int, previous: bool = False
    ) -> bytes:
        """The last `tail` lines of a container's output."""
        query = {"container": container, "tailLines": str(tail), "limitBytes": str(1 << 20)}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        what = f"read the log of pod {pod} in namespace {namespace}"
        return await self._bytes("GET", path, what, {**query, **({"previous": "true"} if previous else {})})

    async def allowed(self, verb: str, resource: Resource, namespace: str) -> bool:
        """Whether this connection has the right, by the answer of the API server."""
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
        said = parsed(await self._bytes("POST", path, _RIGHTS, body=body), _RIGHTS)
        return bool(said["status"]["allowed"])

    async def knows(self, resource: Resource) -> bool:
        """Whether the cluster has this kind of object."""
        group = f"/apis/{resource.group}" if resource.group else "/api"
        try:
            said = parsed(await self._bytes("GET", f"{group}/{resource.version}", _KINDS), _KINDS)
        except (Missing, NoSuchKind):
            return False
        return any(found["name"] == resource.plural for found in said["resources"])

    async def schema(self, resource: Resource) -> dict[str, Any]:
        """The OpenAPI schema of a kind; empty if the cluster has none."""
        group = f"apis/{resource.group}" if resource.group else "api"
        try:
            path = f"/openapi/v3/{group}/{resource.version}"
            said = parsed(await self._bytes("GET", path, _KINDS), _KINDS)
        except KubeError as error:
            if error.status == 404:  # empty, and not a Status, for a while after a kind was registered
                return {}
            raise
        mark = {"group": resource.group, "kind": resource.kind, "version": resource.version}
        schemas = said.get("components", {}).get("schemas", {}).values()
        found = (one for one in schemas if mark in one.get("x-kubernetes-group-version-kind", ()))
        return next(found, {})

    @contextlib.asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str, *, labels: str, version: str, seconds: int
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Changes since `version`, as the server sends them, with bookmarks; they end after about `seconds`.

        An error on entry means that the server has not begun to watch. Raises Gone, then or later, if the server does
        not remember `version`.
        """
        query = {
            "watch": "1",
            "labelSelector": labels,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        what = f"watch {resource.full_name} in namespace {namespace}"
        timeout = aiohttp.ClientTimeout(connect=ANSWER_SECONDS, sock_read=SILENCE_SECONDS)
        path = resource.path(namespace)
        with _as_kube_errors(what):
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._send("GET", path, query, None, None, timeout)
        async with answer:
            if answer.status >= 400:
                with _as_kube_errors(what):
                    raise named(error_of(answer.status, await answer.read(), what), resource)
            yield _events(answer, what)

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
            return parsed(await self._bytes(method, path, what, query, body, content), what)
        except KubeError as error:
            raise named(error, resource) from None

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
        url = self.server + path + (f"?{urlencode(query)}" if query else "")

        async def once(token: str | None) -> aiohttp.ClientResponse:
            answer: aiohttp.ClientResponse = await self._rest.request(
                method,
                url,
                headers={**headers, **({"authorization": token} if token else {})},
                body=body,
                _preload_content=False,
                _request_timeout=timeout,
            )
            return answer

        used = await self._credentials()
        answer = await once(used[0])
        if answer.status == 401 and await self._renewed(used):
            answer.release()
            answer = await once((await self._credentials())[0])
        return answer

    async def _credentials(self) -> tuple[str | None, ...]:
        """The token, and the files of the certificate. Read each time: a pod's token is read again each minute."""
        token = (await self._configuration.auth_settings()).get("BearerToken")
        files = self._configuration.cert_file, self._configuration.key_file
        return (token["value"] if token else None, *files)

    async def _renewed(self, refused: tuple[str | None, ...]) -> bool:
        """Whether there are other credentials now than the refused ones.

        A kubeconfig names programs and files whose tokens expire, some after minutes; kubernetes_asyncio asks once.
        """
        async with self._renewing:
            if await self._credentials() != refused:  # another task has renewed them
                return True
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._configuration = await configuration_of(self._access)
            except (EngineError, TimeoutError) as error:
                log.warning(
                    "the credentials are refused, and there are no new ones: %s", error or "no answer"
                )
                return False
            now = await self._credentials()
            if now[1:] != refused[1:]:  # a new certificate needs new connections
                old, self._rest = self._rest, kube.ApiClient(self._configuration).rest_client
                await old.close()
            return now != refused


async def _events(answer: aiohttp.ClientResponse, what: str) -> AsyncIterator[dict[str, Any]]:
    with _as_kube_errors(what):
        async for line in answer.content:
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise error_of(status.get("code", 500), json.dumps(status).encode(), what)
            yield event


def _within(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""


_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")


@contextlib.contextmanager
def _as_kube_errors(what: str) -> Iterator[None]:
    """Turn all errors of a connection into KubeErrors."""
    try:
        yield
    except TimeoutError as error:
        raise KubeError(f"cannot {what} for now: the API server does not answer") from error
    except (aiohttp.ClientError, OSError, ValueError, ConfigException) as error:
        # Some texts quote the URL of a proxy, which may contain a password.
        said = _CREDENTIALS.sub("", str(error))
        raise KubeError(f"cannot {what} for now: {type(error).__name__}: {said}") from None
