"""Every engine keeps the same promises."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.host import processes
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Engine, Job
from airflow_elastic.engines.local import LocalEngine
from airflow_elastic.spec.errors import EngineError, SpecError, SubmitRefused
from airflow_elastic.spec.run import RunSpec, SecretRef
from airflow_elastic.spec.scaling.observation import Capacity, Claim
from airflow_elastic.testing.engine_conformance import EngineConformance
from airflow_elastic.testing.fake_engine import FakeEngine

FOREVER = Path(__file__).parents[1] / "support/scripts/faults/forever.py"


class TestFakeEngine(EngineConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        FakeEngine.jobs.clear()
        return FakeEngine()

    @pytest.fixture
    def uri(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def make_spec(self, **changes: Any) -> RunSpec:
        return RunSpec(command=("forever.py",), engine="fake", **changes)


class TestLocalEngine(EngineConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return LocalEngine()

    @pytest.fixture
    def uri(self, tmp_path: Path) -> str:
        (tmp_path / "a b").mkdir()
        return str(tmp_path / "a b")

    def make_spec(self, **changes: Any) -> RunSpec:
        return RunSpec(command=(str(FOREVER),), **changes)

    @pytest.fixture(autouse=True)
    def _nothing_stays(self, uri: str) -> Any:
        yield
        assert processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", f"{uri}/local") == []


def test_local_names_what_it_does_not_know() -> None:
    spec = RunSpec(
        command=("t.py",), engine_options={"pyton": "x", "python": "/no/such"}, working_dir="/no/such"
    )
    with pytest.raises(SpecError) as error:
        LocalEngine().check(spec)
    assert [p.path for p in error.value.problems] == [
        "engine_options.pyton",
        "engine_options.python",
        "working_dir",
    ]


async def test_local_refuses_a_secret_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    spec = RunSpec(command=("t.py",), secrets=(SecretRef("TOKEN", "env", "NO_SUCH_SECRET"),))
    with pytest.raises(SubmitRefused, match="NO_SUCH_SECRET, which is not set"):
        await LocalEngine().submit(Job(str(tmp_path), spec, 1, 1))
    assert os.listdir(tmp_path) == []


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"one of .*local.*did you mean local"):
        find_engine("locl")


def test_an_engine_need_not_be_installed() -> None:
    assert find_engine("airflow_elastic.testing.fake_engine:FakeEngine").name == "fake"
    with pytest.raises(SpecError, match="module:attribute"):
        find_engine("no.such.module:Engine")


@pytest.mark.parametrize(
    "name",
    ["x" * 200, "Ünïcode run", "9lives", "a/b.c_d", "-", "dag.task.scheduled__2026-11-21T00:00:00+00:00.17"],
)
def test_job_names_are_legal_everywhere_and_distinct(name: str) -> None:
    spec = object.__new__(RunSpec)
    object.__setattr__(spec, "name", name)
    names = {Job(uri, spec, attempt, 1).name for uri in ("s3://a/b", "s3://a/c") for attempt in (1, 12, 999)}
    assert len(names) == 6
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", found) and len(found) <= 37 for found in names), (
        names
    )


async def test_the_capacity_that_tests_say(tmp_path: Path) -> None:
    """From outside, by an option, or by a file that changes while the run goes on."""
    engine, file = FakeEngine(), tmp_path / "capacity.json"

    def job(capacity: Any) -> Job:
        options = {} if capacity is None else {"capacity": capacity}
        spec = RunSpec(command=("t.py",), engine="fake", engine_options=options)
        engine.check(spec)
        return Job(str(tmp_path / "run"), spec, 1, 1)

    assert (await engine.capacity(job(None))).free is None
    assert (await engine.capacity(job({"free": 3}))).free == 3
    file.write_text('{"free": 1, "claims": [{"name": "pod x", "workers": 2, "priority": 9}]}')
    found = await engine.capacity(job(str(file)))
    assert (found.free, found.claims) == (1, (Claim("pod x", 2, 9),))
    file.write_text('{"free": 5}')
    assert (await engine.capacity(job(str(file)))).free == 5
    engine.set_capacity(str(tmp_path / "run"), Capacity(0.0, 7))
    assert (await engine.capacity(job(str(file)))).free == 7
    file.unlink()
    engine.capacities.clear()
    with pytest.raises(EngineError, match=r"capacity\.json"):
        await engine.capacity(job(str(file)))
    with pytest.raises(SpecError, match="the path of a file"):
        job(3)
