"""Finds the object that becomes a run among all objects of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.manifests.kinds import READERS
from airflow_elastic.engines.kube.manifests.section import name_of
from airflow_elastic.engines.kube.manifests.yaml_files import read_documents
from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError

#: What to do with common kinds that cannot become a run.
_ADVICE = {
    ("batch.volcano.sh", "Job"): (
        "a Job of batch/v1 with the same pod: the engine job makes a gang of its workers in a queue of Volcano. Set "
        "engine_options queueing: volcano and queue"
    ),
    (
        "kubeflow.org",
        "MPIJob",
    ): "a PyTorchJob or a Job whose command is torchrun: ranks are not started by mpirun",
    ("jobset.x-k8s.io", "JobSet"): "a Job with the pod of the replicated job that trains",
    ("", "Pod"): "a Job with this pod as its template",
    ("apps", "Deployment"): "a Job with this pod as its template: training ends",
    ("apps", "StatefulSet"): "a Job with this pod as its template: training ends",
    ("ray.io", "RayJob"): "a Job whose command is torchrun: ranks are not started by Ray",
}


class Found(NamedTuple):
    """The objects of a file.

    Attributes:
        body: the object that becomes a run.
        others: the other ones.
    """

    body: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...] = ()


def find_object(
    manifest: str | Path | Mapping[str, Any], kind: str | None = None, name: str | None = None
) -> Found:
    """The object that becomes a run.

    Args:
        manifest: the path of a YAML or JSON file, or an object: of Kubernetes, or a List of some.
        kind: of the object, in upper or lower case, if there are several.
        name: of the object, if there are several.

    Raises:
        InvalidInput: the file cannot be read, or has no such object, or several; the text lists all its objects.
        SpecError: it has just one object, of a kind that cannot become a run.
    """
    where = "the manifest" if isinstance(manifest, Mapping) else str(manifest)
    if isinstance(manifest, Mapping):
        objects = _unpacked([manifest], where)
    else:
        objects = _unpacked([one.value for one in read_documents(Path(manifest))], where)
    if not objects:
        raise InvalidInput(f"{where}: it holds nothing; wanted is a manifest with apiVersion, kind and spec")
    wanted = [one for one in objects if _is(one, kind, name)]
    fitting = [one for one in wanted if _key(one) in READERS]
    if len(fitting) == 1:
        return Found(fitting[0], tuple(one for one in objects if one is not fitting[0]))
    if len(objects) == 1 and wanted:
        raise SpecError(_unfit(objects[0]))
    held = f"{len(objects)} document{'s' * (len(objects) > 1)}: {', '.join(map(title, objects))}"
    if not fitting:
        raise InvalidInput(f"{where}: it holds {held}; wanted is {_asked(kind, name)}, one of {_known()}")
    raise InvalidInput(
        f"{where}: it holds {held}: say which one is meant, by kind and name "
        "(in Python from_manifest(…, kind=…, name=…); in a shell --object KIND/NAME)"
    )


def title(found: Mapping[str, Any]) -> str:
    """The title of an object in messages: `Job fit`."""
    metadata = found.get("metadata")
    name = metadata.get("name", metadata.get("generateName")) if isinstance(metadata, Mapping) else None
    return " ".join(str(word) for word in (found.get("kind", "an object without kind"), name) if word)


def _unpacked(values: Sequence[Any], where: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for value in values:
        if not isinstance(value, Mapping):
            text = f"it holds {str(value)[:40]!r}; wanted is a manifest with apiVersion, kind and spec"
            raise InvalidInput(f"{where}: {text}")
        items = value.get("items")
        if (
            str(value.get("kind", "")).endswith("List")
            and isinstance(items, Sequence)
            and not isinstance(items, str)
        ):
            found += _unpacked(items, where)
        else:
            found.append(value)
    return found


def _is(one: Mapping[str, Any], kind: str | None, name: str | None) -> bool:
    return (kind is None or str(one.get("kind")).lower() == kind.lower()) and name in (None, name_of(one))


def _key(one: Mapping[str, Any]) -> tuple[str, str]:
    version = one.get("apiVersion")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    return group, str(one.get("kind"))


def _unfit(one: Mapping[str, Any]) -> Problem:
    given = " ".join(str(one[key]) for key in ("apiVersion", "kind") if one.get(key)) or None
    advice = _ADVICE.get(_key(one))
    return Problem("kind", given, f"one of {_known()}" + (f"; here: {advice}" if advice else ""))


def _asked(kind: str | None, name: str | None) -> str:
    return " ".join(filter(None, (kind or "an object", name)))


def _known() -> str:
    return ", ".join(f"{name} of {where}" for where, name in READERS)
