"""`/metrics` of `airflow-elastic ui`, as a scraper reads it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.spec import events as ev
from airflow_elastic.views.all_runs.run_list import row
from airflow_elastic.web.standalone.prometheus import exposition
from tests.support.runs.watched import Browser, submitted, trained, write_run

_LINE = re.compile(
    r"# (HELP|TYPE) elastic_\w+ [^\n]+|"
    r'elastic_\w+\{\w+="(?:[^"\\\n]|\\[\\"n])*"(?:,\w+="(?:[^"\\\n]|\\[\\"n])*")*\} (?:NaN|[+-]Inf|-?[\d.e+-]+)'
)


def test_runs_at_work_have_metrics_and_all_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "a", submitted(), progress=trained(250), name="a")
    write_run(tmp_path / "over", submitted(), ev.RunEnded(time.time(), "failed", "x"), name="over")
    answer = Browser(tmp_path).get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert 'elastic_runs{state="failed"} 1' in lines
    assert f'elastic_run_step{{run="a",uri="{tmp_path}/a"}} 250' in lines
    assert f'elastic_run_progress{{run="a",uri="{tmp_path}/a"}} 0.25' in lines
    assert not any("over" in line for line in lines)
    assert Browser(tmp_path, signed_in=False).get("/metrics").status_code == 401


@given(
    name=st.text(max_size=20),
    loss=st.one_of(st.none(), st.floats(), st.text(max_size=3)),
    goodput=st.one_of(st.none(), st.floats(0, 1)),
    state=st.text(max_size=10),
)
def test_no_name_and_no_number_breaks_the_form(
    name: str, loss: Any, goodput: float | None, state: str
) -> None:
    document = {"run": {"name": name}, "state": state, "loss": loss, "goodput": goodput, "at": 0.0, "step": 3}
    text = exposition([row("p", f"/r/{name}", document, 0.0)], 0.0)
    for line in text.removesuffix("\n").split("\n"):
        assert _LINE.fullmatch(line), line
