"""Tasks made of functions: what their runs get, and which arguments are refused."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_elastic.decorators import elastic_train_task
from airflow_elastic.decorators.function_task import FunctionTask
from airflow_elastic.decorators.script import script_of
from airflow_elastic.operators import ElasticEvaluateOperator
from airflow_elastic.spec.errors import SpecError

TEXT = """
from airflow.sdk import DAG, task
RATE = 0.1
with DAG("d", schedule=None) as dag:
    @task.elastic_train(workers=2)
    def train(epochs: int, rate: float = RATE, **more):
        print(epochs, rate, more)
    @task.elastic_train
    def bare():
        print(RATE)
    def plain(a):
        print(a)
    one = train(1, x=[2])
    other = train.override(task_id="other", workers=3)(epochs="{{ ds }}")
    mapped = train.partial(rate=0.5).expand(epochs=[1, 2])
    none = bare()
    @task.elastic_evaluate(source=one["run_uri"], optional=True)
    def new(batch: int):
        print(batch, RATE)
    seen = new(batch=3)
    accuracy = seen["metrics"]
    called = task.elastic_train(task_id="called")(plain)("a")
"""


def loaded(folder: Path, text: str = TEXT) -> ModuleType:
    path = folder / "a_dag.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("a_dag", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command_of(operator: FunctionTask) -> list[str]:
    script = script_of(operator.python_callable, has_modules=bool(operator.env))
    assert script is not None
    return operator._call_of(script)


def test_a_function_may_be_several_tasks(tmp_path: Path) -> None:
    dag = loaded(tmp_path)
    one, other = dag.one.operator, dag.other.operator
    assert command_of(one) == ["train.task.py", '{"epochs": 1, "x": [2]}']
    assert json.loads(command_of(other)[1]) == {"epochs": "{{ ds }}"}
    assert (one.task_id, other.task_id, other.workers) == ("train", "other", 3)
    assert sorted(dag.dag.task_ids) == ["bare", "called", "new", "other", "train", "train__1"]
    assert command_of(dag.none.operator) == ["bare.task.py"]
    assert command_of(dag.called.operator) == ["plain.task.py", '{"a": "a"}']


def test_an_evaluation_is_a_function_too(tmp_path: Path) -> None:
    new = loaded(tmp_path).seen.operator
    assert isinstance(new, ElasticEvaluateOperator)
    assert new.multiple_outputs
    assert (new.optional, new.upstream_task_ids) == (True, {"train"})
    assert {"source", "op_kwargs"} < set(new.template_fields)
    assert command_of(new) == ["new.task.py", '{"batch": 3}']


@pytest.mark.parametrize("given", [{1, 2}, Path("x"), {1: 2}, float("nan")])
def test_what_json_cannot_express_is_refused_by_its_name(given: Any, tmp_path: Path) -> None:
    dag = loaded(tmp_path)
    with dag.dag, pytest.raises(SpecError, match=r"train\(epochs.*\): given .*; allowed: a JSON value"):
        dag.train.override(task_id="bad")(epochs=given)


def test_arguments_that_are_too_long_are_refused(tmp_path: Path) -> None:
    dag = loaded(tmp_path)
    with dag.dag, pytest.raises(SpecError, match="store more, and pass its URI"):
        dag.train.override(task_id="bad")(epochs="a" * 200_000)


def test_a_dag_in_an_archive_has_its_text_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "dags.zip", "w") as archive:
        archive.writestr("packed_dag.py", TEXT)
    monkeypatch.syspath_prepend(str(tmp_path / "dags.zip"))
    packed = importlib.import_module("packed_dag")
    monkeypatch.delitem(sys.modules, "packed_dag")
    found = script_of(packed.one.operator.python_callable)
    assert found == script_of(loaded(tmp_path).one.operator.python_callable)


def test_workers_with_a_path_of_their_own_may_have_modules_from_beside_the_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = TEXT.replace("RATE = 0.1", "from mine import A as RATE")
    with pytest.raises(SpecError, match=r"train uses RATE, .* it is from mine\.A, and workers have no "):
        loaded(tmp_path, text)
    given = 'workers=2, env={"PYTHONPATH": "/opt/code"}'
    known = text.replace("workers=2", given).replace("elastic_train\n", f"elastic_train({given})\n")
    known = known.replace("optional=True", f"optional=True, {given}")
    assert command_of(loaded(tmp_path, known).one.operator)[0] == "train.task.py"


@pytest.mark.parametrize("function", [lambda: ["train.py"], print])
def test_other_callables_return_commands(function: Callable[..., Any]) -> None:
    assert script_of(function) is None


def test_a_function_without_a_file_is_refused() -> None:
    place: dict[str, Any] = {}
    exec("def train():\n    pass\n", place)
    with pytest.raises(SpecError, match="there is no file with the text of this function"):
        elastic_train_task(place["train"], task_id="a")()
