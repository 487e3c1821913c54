"""Finds errors before anything is created, and the findings of `doctor`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Access, KubeError
from airflow_elastic.adapters.kube.access import is_configured
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import PODS, Resource
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.engines.api import Finding
from airflow_elastic.engines.kube.options import KubeOptions, options_of
from airflow_elastic.engines.kube.queues import native
from airflow_elastic.engines.kube.render.reserved_fields import PodSettings, refused
from airflow_elastic.engines.kube.render.tensorboard import board_problem, board_problems
from airflow_elastic.engines.quantities import ALLOWED, is_quantity
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import EngineError, Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow_elastic.adapters.kube import Client
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.spec.run import RunSpec

_RIGHTS = ("create", "get", "list", "watch", "patch", "delete")
_POD_RIGHTS = ("list", "watch", "deletecollection")
_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")


def check_spec(kind: Kind, spec: RunSpec) -> None:
    """Refuse bad options, bad quantities, and secrets that cannot be passed on. Raises SpecError."""
    options = options_of(spec, kind.options)
    problems = [
        Problem(f"workers.resources.{name}", value, ALLOWED)
        for name, value in spec.workers.resources.items()
        if not is_quantity(value)
    ]
    for i, secret in enumerate(spec.secrets):
        if secret.source == "env":
            allowed = "kubernetes (key: secret/key) or file: workers on a cluster do not see variables of this process"
            problems.append(Problem(f"secrets.{i}.source", secret.source, allowed))
    problems += [*kind.check(spec, options), *native.check(kind.name, options)]
    problems += board_problems(spec, options)
    problems += refused(PodSettings(spec, options, kind.container))
    if problems:
        raise SpecError(*problems)


def storage_problem(kind: Kind, job: Job, options: KubeOptions) -> str | None:
    """Why workers cannot see the place where the run is stored; None if they can."""
    if open_store(job.run_uri).local_path(layout.STATUS) is None:
        return None
    template = pod_template(kind, job, options)
    mounts = [m["mountPath"].rstrip("/") for c in template["containers"] for m in c.get("volumeMounts", ())]
    if any(f"{job.run_uri}/".startswith(f"{mount}/") for mount in mounts):
        return board_problem(job, options)
    return (
        f"the run is stored in the folder {job.run_uri}, but workers on a cluster do not see it. Use "
        "s3://bucket/prefix, or mount a shared volume at the same path (engine_options.volumes)"
    )


def pod_template(kind: Kind, job: Job, options: KubeOptions) -> dict[str, Any]:
    """The `spec` of the pod template in the kind's objects, at whatever place."""
    todo: list[object] = [body for _, body in kind.render(job, options)]
    while todo:
        found = todo.pop()
        if isinstance(found, dict):
            if isinstance(found.get("containers"), list):
                return found
            todo += found.values()
        elif isinstance(found, list):
            todo += found
    return {"containers": []}


def doctor(
    kind: Kind,
    access: Access | None,
    namespace: str | None = None,
    further: Sequence[tuple[str, Resource]] = (),
    look: Callable[[Client, str], Awaitable[list[Finding]]] | None = None,
) -> list[Finding]:
    """Whether the cluster can be reached, knows the kind, and grants the rights, with the further ones; and what else
    `further` finds. Blocks.
    """
    namespace = namespace or KubeOptions(image="any").namespace
    with ThreadPoolExecutor(1) as thread:  # this thread may have an event loop
        return thread.submit(
            asyncio.run, _doctor(kind, access or Access(), namespace, further, look)
        ).result()


async def _doctor(
    kind: Kind,
    access: Access,
    namespace: str,
    further: Sequence[tuple[str, Resource]],
    look: Callable[[Client, str], Awaitable[list[Finding]]] | None,
) -> list[Finding]:
    subject = f"{kind.name}: cluster"
    if not is_configured(access):
        return [Finding(subject, False, "none is set up: set KUBECONFIG to run workers on one", needed=False)]
    try:
        async with hub(access) as shared:
            client = shared.client
            if not await client.knows(kind.resource):
                # A cluster does not need every kind, so a missing one is no failure.
                lacks = f"{client.server} has no {kind.resource.full_name}: install {kind.resource.needs} to use it"
                return [Finding(subject, False, lacks, needed=False)]
            wanted: list[tuple[str, Resource]] = [(verb, kind.resource) for verb in _RIGHTS]
            wanted += [(verb, PODS) for verb in _POD_RIGHTS]
            wanted += further
            missing = [
                f"{verb} {resource.full_name}"
                for verb, resource in wanted
                if not await client.allowed(verb, resource, namespace)
            ]
            text = (
                f"{await _who(client)} lacks in namespace {namespace}: {', '.join(missing)}. Grant them with a Role "
                "(docs/how-to/grant-rights.md)"
                if missing
                else f"all that are needed in namespace {namespace}"
            )
            return [
                Finding(subject, True, f"{client.server} has {kind.resource.full_name}"),
                Finding(f"{kind.name}: rights", not missing, text),
                *(await look(client, namespace) if look is not None else ()),
            ]
    except (EngineError, KubeError) as error:
        return [Finding(subject, False, str(error))]


async def _who(client: Client) -> str:
    """Who this connection is, for the cluster."""
    head = {"apiVersion": _REVIEWS.api_version, "kind": _REVIEWS.kind}
    try:
        return str((await client.create(_REVIEWS, "", head))["status"]["userInfo"]["username"])
    except (KubeError, LookupError):  # of Kubernetes before 1.28
        return "this account"
