"""`run.train` without an agent, and when a process begins too often."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import DistBackendError

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.train import TRIES, _is_of_peers
from airflow_elastic.runtime.staying.agent_link import ENVIRONMENT
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RESTART_ME


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "AIRFLOW_ELASTIC_RANK_FILES"):
        monkeypatch.delenv(name, raising=False)


def test_without_an_agent_the_function_is_called_once() -> None:
    run = elastic.init()
    assert run.train(lambda a, b: (a, b), 1, b=2) == (1, 2)


def test_with_an_agent_out_of_reach_it_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "nobody-listens")
    assert elastic.init().train(lambda: "done") == "done"


@pytest.mark.parametrize("given", [None, 3])
def test_what_is_no_function_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match=f"given {given}; allowed: a function, which is not called here"):
        elastic.init().train(given)  # type: ignore[arg-type]


def test_its_error_passes() -> None:
    with pytest.raises(ValueError, match="mine"):
        elastic.init().train(int, "mine")


def test_a_process_gives_up_after_tries_without_a_step() -> None:
    run = elastic.init()
    found = [run._hinders() for _ in range(TRIES + 1)]
    assert found[:TRIES] == [None] * TRIES
    assert "no new step" in (found[TRIES] or "")


def test_one_that_averages_cannot_go_on() -> None:
    run, model = elastic.init(), torch.nn.Linear(1, 1)
    run.restore(model, torch.optim.SGD(model.parameters()))
    run.average(every=2)
    assert "run.average has a thread" in (run._hinders() or "")


def begin_again(run: elastic.Session) -> None:
    assert run._hinders() is None
    run._begin(RankEnvironment.read())


def test_a_trained_model_from_outside_needs_a_checkpoint() -> None:
    run, model = elastic.init(), torch.nn.Linear(1, 1)
    run.restore(torch.nn.Sequential(model))
    begin_again(run)
    assert run._needs_checkpoint()
    with pytest.raises(SystemExit) as ended:
        run.restore(torch.nn.Sequential(model))
    assert ended.value.code == RESTART_ME


def test_one_that_the_function_makes_needs_none() -> None:
    run = elastic.init()
    for _ in range(2):
        model = torch.nn.Linear(1, 1)
        run.restore(model, torch.optim.SGD(model.parameters()))
        del model
        begin_again(run)
        assert not run._needs_checkpoint()


def test_a_trained_object_from_outside_needs_one_too() -> None:
    run, scaler = elastic.init(), torch.amp.GradScaler("cpu")
    run.restore(torch.nn.Linear(1, 1), scaler=scaler)
    begin_again(run)
    assert run._needs_checkpoint()
    with pytest.raises(SystemExit):
        run.restore(torch.nn.Linear(1, 1), scaler=scaler)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:1"), True),
        (DistBackendError("NCCL communicator was aborted on rank 0."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ConnectionResetError("Connection reset by peer"), False),
        (ValueError("a bad batch"), False),
    ],
)
def test_which_errors_are_of_peers(error: Exception, expected: bool) -> None:
    assert _is_of_peers(error) is expected
