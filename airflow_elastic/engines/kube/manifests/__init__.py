"""Turns a user's manifest into the specification of a run: `from_manifest("job.yaml")`.

In: the text of a YAML file, or an object of one of five kinds. Out: a `RunSpec`, or an error with the paths of all
parts of the manifest that cannot be kept. Nothing here talks to a cluster or to a store.
"""

from airflow_elastic.engines.kube.manifests.documents import find_object, title
from airflow_elastic.engines.kube.manifests.reading import from_manifest, left_out, run_of

__all__ = ["find_object", "from_manifest", "left_out", "run_of", "title"]
