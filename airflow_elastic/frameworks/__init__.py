"""Elastic training with a framework: Hugging Face's Trainer, Lightning's Trainer, or your own loop with Accelerate.

    from airflow_elastic.frameworks.huggingface import ElasticTrainer
    from airflow_elastic.frameworks.lightning import ElasticTrainer
    from airflow_elastic.frameworks.accelerate import ElasticRun

Each is a thin layer over `airflow_elastic.runtime`. Each module needs only its own framework.
"""

from __future__ import annotations


def missing(package: str, extra: str) -> ImportError:
    """The error for a framework that is not installed; it says how to install it."""
    return ImportError(
        f"{package} is not installed here: pip install 'airflow-elastic[runtime,{extra}]', or {package} itself",
        name=package,
    )
