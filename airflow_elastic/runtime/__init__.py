"""What a training script imports: `import airflow_elastic.runtime as elastic`.

    run = elastic.init()                                       # joins the other ranks
    run.restore(model, optimizer, schedule=schedule)           # from the newest verified checkpoint, if there is one
    for epoch in run.epochs(10):                               # from the one that the run stands in
        for x, y in run.loader(data, global_batch=64):         # each sample once, whatever the number of ranks
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            (run.weight * loss).backward()
            optimizer.step()
            run.step(loss)                                     # reports, saves when due, stops where it is asked to
        schedule.step()
    run.finish(accuracy=0.98)                                  # final checkpoint and results

And what a program imports that wants the model when it is trained:

    elastic.load_model(run_uri, model)                         # the newest checkpoint, verified; no other rank needed
    elastic.export_weights(run_uri, "model.safetensors")       # for programs that do not know us
    elastic.load_weights("pretrained.safetensors", model)      # the other way round, before `run.restore`

Importing this package does not import torch; the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_elastic.runtime.checkpoint.restore.load_model import load_model
    from airflow_elastic.runtime.checkpoint.restore.weights import export_weights, load_weights
    from airflow_elastic.runtime.data.sampler import ElasticBatches
    from airflow_elastic.runtime.data.stream import ShardedStream
    from airflow_elastic.runtime.session.begin import init
    from airflow_elastic.runtime.session.session import Session

__all__ = [
    "ElasticBatches",
    "Session",
    "ShardedStream",
    "export_weights",
    "init",
    "load_model",
    "load_weights",
]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from airflow_elastic.runtime.session.session import Session

        return Session
    if name == "init":
        from airflow_elastic.runtime.session.begin import init

        return init
    if name == "ElasticBatches":
        from airflow_elastic.runtime.data.sampler import ElasticBatches

        return ElasticBatches
    if name == "ShardedStream":
        from airflow_elastic.runtime.data.stream import ShardedStream

        return ShardedStream
    if name == "load_model":
        from airflow_elastic.runtime.checkpoint.restore.load_model import load_model

        return load_model
    if name in ("export_weights", "load_weights"):
        from airflow_elastic.runtime.checkpoint.restore import weights

        return getattr(weights, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
