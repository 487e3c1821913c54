"""A script that prints more than anybody reads costs its log's delay, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.output import Output
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.spec import layout
from tests.support import s3
from tests.support.cli import SCRIPTS
from tests.support.patience import PATIENCE_SECONDS

COMMAND = Path(sys.executable).with_name("airflow-elastic")
SHORT, LONG = 4_000_000, 40


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    with s3.s3_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{server.bucket}/run"


@pytest.mark.slow
def test_all_of_it_is_in_the_log_and_what_was_not_shown_is_said(uri: str, tmp_path: Path) -> None:
    words = ("--backoff-limit", "1", "--launcher", "python", "--output", "--uri", uri)
    script = (SCRIPTS / "loud.py", str(SHORT), str(LONG), tmp_path)
    done = subprocess.run(
        [COMMAND, "run", *words, "--", *script],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-2000:]
    assert b"left out here: all of it is in" in shown
    store = open_store(uri)
    between = float((tmp_path / "began-2").read_text()) - float((tmp_path / "ended-1").read_text())
    sys.stdout.write(f"the second attempt began {between:.1f} s after the first had ended\n")
    for attempt in (1, 2):
        printed, rate = map(int, (tmp_path / f"printed-{attempt}").read_text().split())
        output = Output(store, layout.attempt_logs(attempt) + layout.rank_log(1, 0))
        logged = sum(part.size for part in output.parts())
        assert logged == printed, f"attempt {attempt}: {printed} bytes were printed, {logged} are in the log"
        sys.stdout.write(f"attempt {attempt}: {printed / 1e6:.0f} MB, {rate} short lines a second\n")
    assert len(shown) < 2 * (printed + (1 << 20))
