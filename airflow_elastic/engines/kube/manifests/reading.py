"""A manifest that somebody has becomes the specification of a run: `from_manifest("job.yaml")`.

All that it says is kept: in our words where there are any, in `engine_options.pod_template` where not. What cannot be
kept is refused. So every field is taken out of the manifest where it is understood, and what is left over is an error.
What the run does itself goes over to it: restarts, deadlines, and how workers meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_elastic.engines.kube.manifests.kinds import READERS
from airflow_elastic.engines.kube.manifests.parts import Part, Run, take_metadata
from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError
from airflow_elastic.spec.run import RunSpec


def from_manifest(manifest: str | Path | Mapping[str, Any]) -> RunSpec:
    """The run that a manifest describes.

    Args:
        manifest: a Job, PyTorchJob, TrainJob, ElasticJob or PyTorchTrainingJob, or the path of a YAML file with one.

    Raises:
        SpecError: something in it cannot be kept: with all of it that is known, by its paths in the manifest.
        InvalidInput: the file cannot be read, or holds no such thing.
    """
    whole = manifest if isinstance(manifest, Mapping) else _read(Path(manifest))
    group, kind = str(whole.get("apiVersion", "")).partition("/")[0], whole.get("kind")
    reader = READERS.get((group, kind))
    if reader is None:
        known = ", ".join(f"{name} of {where}" for where, name in READERS)
        raise SpecError(Problem("kind", f"{whole.get('apiVersion')} {kind}", known))
    part = Part(whole)
    part.drop("apiVersion", "kind", "status")
    run = Run()
    take_metadata(part.part("metadata"), run)
    reader(part.part("spec"), run)
    part.end()
    return run.spec()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text()) if one is not None]
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}; name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: it is no YAML: {' '.join(str(error).split())}") from None
    if len(documents) != 1 or not isinstance(documents[0], Mapping):
        raise InvalidInput(f"{path}: it holds {len(documents)} documents; wanted is one object")
    return documents[0]
