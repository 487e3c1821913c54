"""The pages inside a real Airflow, in a real browser: the tab of a task instance, and the list of all runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.airflow.conftest import EDITOR, VIEWER
from tests.support.machine.tries import TASK, Try
from tests.support.pages import needs_chromium, run_node


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(("name", "mode"), [(EDITOR, "light"), (VIEWER, "dark")])
def test_the_pages_inside_airflow(start: Callable[..., Try], name: str, mode: str) -> None:
    one = start("elastic_taskflow")
    one.wait("success")
    run_node(
        "tests/in_airflow.ts",
        VISIT=json.dumps(
            {
                "url": one.airflow.url,
                "user": name,
                "password": one.airflow.passwords[name],
                "page": f"/dags/{one.dag}/runs/{quote(one.run_id, safe=':+')}/tasks/{TASK}",
                "dag": one.dag,
                "run": one.run_id,
                "mode": mode,
            }
        ),
    )
