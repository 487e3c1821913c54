"""Functions of a DAG file that are the training script, on a real Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.tries import Try

DAG_FILE = Path(__file__).parent / "dags" / "function_dag.py"


@pytest.fixture(scope="module")
def batch(start: Callable[..., Try]) -> dict[str, Try]:
    """Runs that go on at the same time."""
    return {name: start(name) for name in ("function", "function_error", "function_mapped")}


def line_of(text: str) -> int:
    """The number of the line of the DAG file with this text."""
    return next(n for n, line in enumerate(DAG_FILE.read_text().splitlines(), 1) if text in line)


def test_a_function_trains_with_arguments_from_other_tasks_and_templates(batch: dict[str, Try]) -> None:
    done = batch["function"]
    done.wait("success")
    assert done.xcom("return_value")["step"] == 100
    assert done.xcom("metrics").keys() == {"loss"}
    log = done.log()
    assert "day function: from step 0" in log


def test_a_function_evaluates_what_another_one_has_trained(
    batch: dict[str, Try], standalone: Standalone
) -> None:
    dag, run_id = batch["function"].dag, batch["function"].run_id
    standalone.wait_run(dag, run_id)
    assert standalone.xcom(dag, run_id, "seen") == ["error"]
    measured = standalone.xcom(dag, run_id, "measure")
    assert (measured["step"], measured["metrics"].keys()) == (100, {"error"})
    assert measured["metrics"]["error"] < 0.1


def test_an_error_is_told_with_its_line_in_the_dag_file(batch: dict[str, Try]) -> None:
    failed = batch["function_error"]
    failed.wait("failed")
    log = failed.log()
    assert "ValueError: on purpose, at step 25" in log
    assert f'train.task.py", line {line_of("on purpose, at step")}, in train' in log
    assert failed.number() == 1


def test_a_function_inside_a_function_can_be_mapped_and_used_again(
    batch: dict[str, Try], standalone: Standalone
) -> None:
    dag, run_id = batch["function_mapped"].dag, batch["function_mapped"].run_id
    standalone.wait_run(dag, run_id)
    logs = [standalone.task_log(dag, run_id, "count", map_index=index) for index in (0, 1)]
    logs.append(standalone.task_log(dag, run_id, "again"))
    assert [f"counted [{number}]" in log for number, log in zip((2, 4, 5), logs, strict=True)] == [True] * 3
