"""Turns a user's manifest into the specification of a run: `from_manifest("job.yaml")`.

Everything in it is kept: as fields of the run if there are any, or else in `engine_options.pod_template`. Parts that
cannot be kept are refused. So the form of every value is checked first, and every known field is taken out of the
manifest. Any field that is left over is an error. The run takes over restarts, deadlines, and the rendezvous.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.engines.kube.manifests.documents import Found, find_object, title
from airflow_elastic.engines.kube.manifests.kinds import READERS
from airflow_elastic.engines.kube.manifests.pods import take_metadata
from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section
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
        manifest: an object, or the path of a YAML or JSON file with one. It is a Job, PyTorchJob, TrainJob, ElasticJob
            or PyTorchTrainingJob. A TrainJob may have its runtime beside it, and a gang of Volcano its PodGroup. Other
            objects in the file are no part of the run: a warning names them.
        kind: of the object, if there are several.
        name: of the object, if there are several.

    Raises:
        SpecError: parts of it cannot be kept; with all known problems, by their paths in the manifest.
        InvalidInput: the file cannot be read, or does not hold one such object.
    """
    found = find_object(manifest, kind, name)
    spec = run_of(found)
    if left := left_out(found):
        log.warning("%s", left)
    return spec


def run_of(found: Found) -> RunSpec:
    """The run of an object. Raises SpecError."""
    group, called = str(found.body.get("apiVersion", "")).partition("/")[0], str(found.body.get("kind"))
    problems: list[Problem] = []
    whole = SHAPES[group, called](found.body, "", problems)
    if problems:
        raise SpecError(*problems)
    part = Section(whole)
    part.drop("apiVersion", "kind", "status")
    run = RunBuilder()
    take_metadata(part.part("metadata"), run)
    READERS[group, called](part.part("spec"), run, found.others)
    take_gang(part, run, found.others)
    part.end()
    return run.spec()


def left_out(found: Found) -> str:
    """A sentence about the objects that are no part of the run; empty if there are none."""
    names = ", ".join(title(one) for one in found.others if not _is_taken(one, found.body))
    return f"no part of the run, so see to it that the cluster has it: {names}" if names else ""


def _is_taken(one: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether settings of the run were taken from this object beside the manifest."""
    if is_group(one):
        return takes_group(body, one)
    return str(one.get("kind", "")).endswith("TrainingRuntime")
