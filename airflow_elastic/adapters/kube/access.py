"""How a cluster is reached: kubeconfigs, as kubernetes_asyncio reads them, and service accounts of pods."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from kubernetes_asyncio import client as kube
from kubernetes_asyncio import config

from airflow_elastic.spec.errors import EngineError

_CONNECTIONS = 100


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster. Equal ones share a connection and its watches.

    Attributes:
        kubeconfig: path of a kubeconfig. Default: `KUBECONFIG`, or else `~/.kube/config`. Without any of these, a pod
            uses its own service account.
        context: of the kubeconfig. Default: its current one.
        content: a kubeconfig itself, as JSON, if it comes from a connection and not from a file.
        in_cluster: use the service account of this pod, even if there are kubeconfigs.
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


async def configuration_of(access: Access) -> kube.Configuration:
    """Server, certificates and token. Each call runs the programs again that a kubeconfig names.

    Raises:
        EngineError: there is no kubeconfig, or it cannot be used.
    """
    configuration = kube.Configuration()
    configuration.connection_pool_maxsize = _CONNECTIONS
    try:
        await _load(access, configuration)
    except Exception as error:  # the errors of reading a malformed kubeconfig have no common class
        # The library's texts may quote the wrong entry after the first line, and that may hold a token.
        said = str(error).partition("{")[0].strip() or type(error).__name__
        raise EngineError(
            f"no cluster can be reached with {access!r}: {said}; set KUBECONFIG, or name a kubeconfig and context"
        ) from None
    return configuration


async def _load(access: Access, configuration: kube.Configuration) -> None:
    if access.content is not None:
        await config.load_kube_config_from_dict(
            json.loads(access.content), context=access.context, client_configuration=configuration
        )
        return
    # Not the library's default, which is the variable's value when the library was imported.
    places = access.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    found = _is_there(places)
    if access.in_cluster or (access.kubeconfig is None and not found and _in_pod()):
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return
    if not found:
        raise FileNotFoundError(f"there is no file {places}")
    await config.load_kube_config(
        config_file=places, context=access.context, client_configuration=configuration, persist_config=False
    )


def is_configured(access: Access) -> bool:
    """Whether anything says where a cluster is."""
    places = access.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    given = access.content is not None or access.in_cluster or access.kubeconfig is not None
    return given or "KUBECONFIG" in os.environ or _is_there(places) or _in_pod()


def _is_there(places: str) -> bool:
    return any(place and Path(place).expanduser().is_file() for place in places.split(os.pathsep))


def _in_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
