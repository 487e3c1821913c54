"""From a manifest that somebody has to the specification of a run: `from_manifest("job.yaml")`.

In comes the text of a YAML file, or an object of one of five kinds; out goes a `RunSpec`, or an error that names what
cannot be kept by its path in the manifest. Nothing here talks to a cluster or to a store.
"""

from airflow_elastic.engines.kube.manifests.documents import find_object, title
from airflow_elastic.engines.kube.manifests.reading import from_manifest, left_out, run_of

__all__ = ["find_object", "from_manifest", "left_out", "run_of", "title"]
