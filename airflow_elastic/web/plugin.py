"""The plugin: mounts the page of a run in Airflow's API server, and nowhere else."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_elastic.operators.link import ElasticRunLink


class ElasticPlugin(AirflowPlugin):
    """Registers the page of a run, and the button that leads there."""

    name = "airflow_elastic"
    fastapi_apps: list[Any] = []  # noqa: RUF012 - as the base class has it
    operator_extra_links: list[Any] = [ElasticRunLink()]  # noqa: RUF012
