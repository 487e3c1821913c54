"""The plugin: mounts the page of a run in Airflow's API server only."""

from __future__ import annotations

import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class ElasticPlugin(AirflowPlugin):
    """Serves the page of a run below `/elastic`."""

    name = "airflow_elastic"
    fastapi_apps: list[Any] = []  # noqa: RUF012 - as the base class has it

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Import the page only in the API server: every task and every other part of Airflow loads plugins, too."""
        if any(word.replace("_", "-") == "api-server" for word in sys.argv):
            from airflow_elastic.web.airflow.app import app

            cls.fastapi_apps = [{"app": app, "url_prefix": "/elastic", "name": "Elastic runs"}]
