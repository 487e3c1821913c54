"""How long the tab *Training* takes to appear in a browser, from the click on it in Airflow's own page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.support.airflow_pages import EDITOR, PASSWORD, Shown, serving
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.page_runs import a_month
from tests.support.pages import needs_chromium, run_node


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.browser
@needs_chromium
@pytest.mark.timeout(1800)
def test_first_paint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = Shown("bench-0", "run-0", "deferred", tmp_path / "runs/bench-0/run-0")
    a_month(shown.folder)
    with serving(tmp_path / "home", tmp_path / "runs", [shown], processes=1) as served:
        visit = {
            "url": served.urls[0],
            "user": EDITOR,
            "password": PASSWORD,
            "page": f"/dags/{shown.dag}/runs/{shown.run}/tasks/train",
            "times": count("PAINTS", 5),
        }
        capfd.readouterr()
        run_node("tests/first_paint.ts", VISIT=json.dumps(visit))
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    with capfd.disabled():
        heading("first paint of the tab Training in Airflow, of a run with a history of 30 days")
        for cache in ("cold", "warm"):
            seen = [one for one in found if one["cache"] == cache]
            print(f"  {cache}, something of ours: {spread([one['first'] for one in seen], 'ms')}")
            print(f"  {cache}, the state of the run: {spread([one['content'] for one in seen], 'ms')}")
            for part in seen[-1]["fetched"]:
                print(
                    f"    {part['name'][-60:]}: {part['start']:.0f} + {part['took']:.0f} ms, {part['bytes']} bytes"
                )
            verdict(f"first paint, {cache}", median([one["first"] for one in seen]) / 1e3, 1.0, " s")
