"""The plugin: mounts the pages of runs in Airflow's API server only."""

from __future__ import annotations

import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

#: Relative to the base of Airflow's pages. Airflow imports each address once, so each of the two has its own.
_BUNDLE, _ICON = "elastic/static/main.js", "elastic/static/icon.svg"


class ElasticPlugin(AirflowPlugin):
    """A tab *Training* on task instances, the page *Elastic runs*, and their routes below `/elastic`."""

    name = "airflow_elastic"
    fastapi_apps: list[Any] = []  # noqa: RUF012 - as the base class has it
    react_apps: list[Any] = []  # noqa: RUF012

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Import the pages only in the API server: every task and every other part of Airflow loads plugins, too."""
        if any(word.replace("_", "-") == "api-server" for word in sys.argv):
            from airflow_elastic.operators.link import TAB
            from airflow_elastic.web.airflow.app import application

            cls.fastapi_apps = [{"app": application(), "url_prefix": "/elastic", "name": "Elastic runs"}]
            cls.react_apps = [
                _page("Training", "task_instance", TAB, f"{_BUNDLE}?{TAB}"),
                _page("Elastic runs", "nav", "elastic-runs", f"{_BUNDLE}?elastic-runs"),
            ]


def _page(name: str, destination: str, route: str, bundle: str) -> dict[str, str]:
    return {
        "name": name,
        "destination": destination,
        "url_route": route,
        "bundle_url": bundle,
        "icon": _ICON,
        "icon_dark_mode": _ICON.replace(".svg", "-dark.svg"),
    }
