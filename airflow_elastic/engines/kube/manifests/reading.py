"""A manifest that somebody has becomes the specification of a run: `from_manifest("job.yaml")`.

All that it says is kept: in our words where there are any, in `engine_options.pod_template` where not. What cannot be
kept is refused. So the shape of every value is checked first, every field is taken out of the manifest where it is
understood, and what is left over is an error. What the run does itself goes over to it: restarts, deadlines, and how
workers meet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.engines.kube.manifests.documents import Found, find_object, title
from airflow_elastic.engines.kube.manifests.kinds import READERS
from airflow_elastic.engines.kube.manifests.making import Run
from airflow_elastic.engines.kube.manifests.parts import Part
from airflow_elastic.engines.kube.manifests.pods import take_metadata
from airflow_elastic.engines.kube.manifests.tables import SHAPES
from airflow_elastic.engines.kube.manifests.volcano import is_group, take_gang, takes_group
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.run import RunSpec

log = logging.getLogger(__name__)


def from_manifest(
    manifest: str | Path | Mapping[str, Any], *, kind: str | None = None, name: str | None = None
) -> RunSpec:
    """The run that a manifest describes.

    Args:
        manifest: a Job, PyTorchJob, TrainJob, ElasticJob or PyTorchTrainingJob, or the path of a YAML or JSON file with
            one. A TrainJob may have its runtime beside it, and a gang of Volcano's its PodGroup. Other objects in the
            file are no part of the run: a warning names them.
        kind: of the object that is meant, where there are several.
        name: of the object that is meant, where there are several.

    Raises:
        SpecError: something in it cannot be kept: with all of it that is known, by its paths in the manifest.
        InvalidInput: the file cannot be read, or does not hold one such object.
    """
    found = find_object(manifest, kind, name)
    spec = run_of(found)
    if left := left_out(found):
        log.warning("%s", left)
    return spec


def run_of(found: Found) -> RunSpec:
    """The run that an object describes. Raises SpecError."""
    group, called = str(found.body.get("apiVersion", "")).partition("/")[0], str(found.body.get("kind"))
    problems: list[Problem] = []
    whole = SHAPES[group, called](found.body, "", problems)
    if problems:
        raise SpecError(*problems)
    part = Part(whole)
    part.drop("apiVersion", "kind", "status")
    run = Run()
    take_metadata(part.part("metadata"), run)
    READERS[group, called](part.part("spec"), run, found.others)
    take_gang(part, run, found.others)
    part.end()
    return run.spec()


def left_out(found: Found) -> str:
    """What is told of the objects beside the one that becomes a run; empty where there are none."""
    names = ", ".join(title(one) for one in found.others if not _is_taken(one, found.body))
    return f"no part of the run, so see to it that the cluster has it: {names}" if names else ""


def _is_taken(one: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether an object beside the manifest is one that what the manifest leaves to it was taken from."""
    if is_group(one):
        return takes_group(body, one)
    return str(one.get("kind", "")).endswith("TrainingRuntime")
