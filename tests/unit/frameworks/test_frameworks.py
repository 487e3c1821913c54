"""A framework that is missing is named, and a loop with Accelerate that would not do what it says is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.attempts import Killed, to_the_end

ACCELERATE = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("accelerate", "lightning", "transformers")))
for name in ("accelerate", "huggingface", "lightning"):
    try:
        __import__(f"airflow_elastic.frameworks.{name}")
    except ImportError as error:
        print(error)
"""


def test_a_framework_that_is_missing_is_named_and_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert [line.partition(", or")[0] for line in done.stdout.splitlines()] == [
        f"{package} is not installed here: pip install 'airflow-elastic[runtime,{extra}]'"
        for package, extra in (
            ("accelerate", "accelerate"),
            ("transformers", "huggingface"),
            ("lightning", "lightning"),
        )
    ]


def accelerated(**options: Any) -> tuple[Any, Any]:
    from accelerate import Accelerator

    from airflow_elastic.frameworks.accelerate import ElasticRun

    data: Any = [torch.full((1,), float(number)) for number in range(20)]
    return ElasticRun(Accelerator(cpu=True)), torch.utils.data.DataLoader(data, **{"batch_size": 4} | options)


@ACCELERATE
def test_a_loop_with_accelerate_that_never_tells_of_a_step_is_refused() -> None:
    """It was given the same epoch over and over."""
    run, loader = accelerated()
    with pytest.raises(InvalidInput, match=r"call run\.step\(\) at the end of each batch"):
        list(run.loader(loader, global_batch=4, epochs=2))


@ACCELERATE
def test_a_loop_with_accelerate_that_does_not_weight_its_batches_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may do so by itself, or leave a batch out."""
    run, loader = accelerated()
    for _ in run.loader(loader, global_batch=4, epochs=1):
        run.step()
    assert run.session.steps == 5
    (said,) = [one for one in caplog.messages if "without run.backward" in one]
    assert "does not weight batches" in said


@ACCELERATE
def test_a_loop_with_accelerate_that_does_not_accumulate_is_refused() -> None:
    run, loader = accelerated()
    next(run.loader(loader, global_batch=8, epochs=1))
    with pytest.raises(InvalidInput, match=r"into `with accelerator\.accumulate\(model\):`"):
        run.step()


@ACCELERATE
def test_a_loader_that_says_nothing_of_what_a_device_takes_is_refused() -> None:
    order = torch.utils.data.BatchSampler(range(20), 4, drop_last=False)
    run, loader = accelerated(batch_size=1, batch_sampler=order)
    with pytest.raises(InvalidInput, match="given a DataLoader without batch_size"):
        next(run.loader(loader, global_batch=8, epochs=1))


@ACCELERATE
def test_a_loop_over_epochs_with_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the end of an epoch is done, with nothing left of its data; and in a phase that is complete."""
    did: list[Any] = []

    def script(session: Any) -> bool:
        monkeypatch.setattr("airflow_elastic.frameworks.accelerate.init", lambda: session)
        run, loader = accelerated()
        model = torch.nn.Linear(1, 1)
        for name in ("one", "two"):
            with session.phase(name):
                run.restore(model)
                for epoch in run.epochs(2):
                    assert session.epoch == epoch
                    for _ in run.loader(loader, global_batch=4):
                        run.step()
                        if (session.attempt, session.steps) == (1, 10):
                            session.save()  # as before ranks end: with all of the epoch behind, and its end not done
                            raise Killed
                        if (session.attempt, session.steps) == (2, 13):
                            raise Killed
                    did.append((name, epoch, session.steps))
                assert session.epoch is None
                for _ in run.loader(loader, global_batch=4, epochs=2):
                    raise AssertionError("there is nothing left")
        session.finish()
        return True

    to_the_end(tmp_path / "run", CheckpointPolicy(every_steps=1), script)
    assert did == [("one", 0, 5), ("one", 1, 10), ("two", 0, 15), ("two", 1, 20)]


@ACCELERATE
def test_a_loop_with_accelerate_says_how_long_it_is() -> None:
    run, loader = accelerated()
    with pytest.raises(InvalidInput, match="allowed: the number of all epochs of the training"):
        next(run.loader(loader, global_batch=4))
    for _ in run.epochs(1):
        with pytest.raises(InvalidInput, match=r"given 3 in a loop over run\.epochs"):
            next(run.loader(loader, global_batch=4, epochs=3))
