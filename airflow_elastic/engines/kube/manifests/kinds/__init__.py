"""Reads each kind of job in a manifest into the fields of a run: a module for each, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.kinds.elasticjob import read_elasticjob
from airflow_elastic.engines.kube.manifests.kinds.job import read_job
from airflow_elastic.engines.kube.manifests.kinds.pytorchjob import read_pytorchjob
from airflow_elastic.engines.kube.manifests.kinds.pytorchtrainingjob import read_pytorchtrainingjob
from airflow_elastic.engines.kube.manifests.kinds.trainjob import read_trainjob
from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section

Objects = Sequence[Mapping[str, Any]]

#: By group and kind: reads a `spec`, and may look at the other objects of the file.
READERS: Mapping[tuple[str, str], Callable[[Section, RunBuilder, Objects], None]] = {
    ("batch", "Job"): read_job,
    ("kubeflow.org", "PyTorchJob"): read_pytorchjob,
    ("trainer.kubeflow.org", "TrainJob"): read_trainjob,
    ("elastic.iml.github.io", "ElasticJob"): read_elasticjob,
    ("batch.tensorstack.dev", "PyTorchTrainingJob"): read_pytorchtrainingjob,
}
