"""Training whose script is a function of the DAG file: what tests/airflow/test_functions.py runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, dag, task

if TYPE_CHECKING:
    import torch

EAGER: dict[str, Any] = {"poll_interval": 0.5, "grace_period": 5}
GLOBAL_BATCH = 8


@dataclass(frozen=True)
class Options:
    """What a training is told."""

    steps: int
    pause: float = 0.02
    day: str = ""


def samples(count: int) -> torch.Tensor:
    """Random features, the same on each rank."""
    import torch

    return torch.randn(count * GLOBAL_BATCH, 2, generator=torch.Generator().manual_seed(0))


with DAG("function", schedule=None):

    @task
    def prepare() -> dict[str, Any]:
        return {"steps": 100, "pause": 0.01}

    @task.elastic_train(workers=2, checkpoint_every_steps=10, **EAGER)
    def train(given: dict[str, Any], day: str, fail_at: int = -1) -> None:
        import torch

        import airflow_elastic.runtime as elastic

        options = Options(**given, day=day)
        run = elastic.init()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        began = run.restore(model, optimizer)
        print(f"{options.day}: from step {began} on {run.world_size} ranks", flush=True)  # noqa: T201
        x = samples(options.steps)
        data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
        for features, target in run.loader(data, global_batch=GLOBAL_BATCH, epochs=1):
            loss = run.weight * torch.nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(options.pause)
            if run.steps == fail_at:
                raise ValueError(f"on purpose, at step {fail_at}")
            run.step(loss)
        run.finish(loss=float(loss))

    trained = train(prepare(), day="day {{ dag.dag_id }}")

    @task.elastic_evaluate(source=trained["run_uri"], **EAGER)
    def measure(count: int) -> None:
        import torch

        import airflow_elastic.runtime as elastic

        run = elastic.init()
        model = torch.nn.Linear(2, 1)
        run.restore(model)
        x = samples(count)
        run.finish(error=float(torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))))

    @task
    def seen(metrics: dict[str, float]) -> list[str]:
        return sorted(metrics)

    seen(measure(5)["metrics"])

with DAG("function_error", schedule=None):
    train({"steps": 60}, day="today", fail_at=25)


@dag(schedule=None)
def function_mapped() -> None:
    """Its functions are inside a function, and one of them is three tasks."""
    import json

    text = """
two lines
"""

    @task.elastic_train(launcher="python", **EAGER)
    def count(number: int, step: int = 1) -> None:
        print(f"counted {json.dumps([number * step])}{text}", flush=True)  # noqa: T201

    count.partial(step=2).expand(number=[1, 2])
    count.override(task_id="again")(number=5)


function_mapped()
