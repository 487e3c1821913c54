"""Trainings whose loop is a framework's: Hugging Face's Trainer, Lightning's, or one's own with Accelerate.

    from airflow_elastic.frameworks.huggingface import ElasticTrainer
    from airflow_elastic.frameworks.lightning import ElasticTrainer
    from airflow_elastic.frameworks.accelerate import ElasticRun

Each is a thin layer over `airflow_elastic.runtime`. A framework is needed by its own module only.
"""

from __future__ import annotations


def missing(package: str, extra: str) -> ImportError:
    """That a framework is not there, and how to get it."""
    return ImportError(
        f"{package} is not installed here: pip install 'airflow-elastic[runtime,{extra}]', or {package} itself",
        name=package,
    )
