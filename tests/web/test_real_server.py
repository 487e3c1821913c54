"""The pages of `airflow-elastic ui` in a real browser, with runs that earlier versions have left."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import needs_chromium, run_node

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
NAMES = ("succeeded", "phases", "cluster")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address that the command prints."""
    for name in NAMES:
        with tarfile.open(RUNS / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
    words = [sys.executable, "-m", "airflow_elastic.cli", "ui", str(tmp_path), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        try:
            assert "http://127.0.0.1:" in said, said + server.stdout.read()
            yield said.rpartition(" ")[2].strip()
        finally:
            server.terminate()


@pytest.mark.browser
@needs_chromium
def test_all_views_of_real_runs(site: str) -> None:
    run_node("tests/real_server.ts", SITE=site, RUNS=",".join(NAMES))
