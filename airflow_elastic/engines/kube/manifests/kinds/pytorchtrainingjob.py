"""A PyTorchTrainingJob of TensorStack (batch.tensorstack.dev/v1beta1), in both of its published forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.commands import Scope
from airflow_elastic.engines.kube.manifests.pods import take_template
from airflow_elastic.engines.kube.manifests.run_builder import Procs, RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section

_RESTART_POLICY = "Never"  # the operator's own
_PER_POD = frozenset(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))


def read_pytorchtrainingjob(part: Section, run: RunBuilder, others: Sequence[Mapping[str, Any]] = ()) -> None:
    """One kind of replicas, which train; behind the operator's own torchrun if that is on."""
    run.plain["engine"] = "pytorchtrainingjob"
    specs = part.take("replicaSpecs", [])
    if len(specs) != 1:
        part.refuse("replicaSpecs", len(specs), "one entry: all workers of a run are alike")
        return
    one = part.of(specs[0], "replicaSpecs.0")
    one.only("type", "worker", "Worker", "master", "Master", why="worker: all workers of a run are alike")
    count = one.take("replicas", 1)
    run.set_field("restart.policy", one.take("restartPolicy", _RESTART_POLICY), one.at("restartPolicy"))
    run.option("scaling_weight", one, "scalingWeight")
    torchrun = part.part("torchrunConfig")
    guide = "enable" in torchrun.data or "minNodes" in torchrun.data
    enabled, enable = torchrun.take("enabled"), torchrun.take("enable")
    least, path = torchrun.take("minNodes"), torchrun.at("minNodes")
    elastic = part.part("elastic")
    if elastic.take("enabled"):
        key = "expectedReplicas" if "expectedReplicas" in elastic.data else None
        source = elastic.at(key) if key else one.at("replicas")
        bounds = (elastic.at("minReplicas"), elastic.at("maxReplicas"))
        expected, fewest, most = (elastic.take(n) for n in ("expectedReplicas", "minReplicas", "maxReplicas"))
        run.number(count if expected is None else expected, source, fewest, most, bounds)
    else:
        elastic.drop("minReplicas", "maxReplicas", "expectedReplicas")
        run.number(count, one.at("replicas"), least, None if least is None else count, (path, path))
    run.set_field("restart.backoff_limit", torchrun.take("maxRestarts"), torchrun.at("maxRestarts"))
    run.option("rdzv_backend", torchrun, "rdzvBackend")
    run.option("torchrun_options", torchrun, "extraOptions")
    procs = Procs(torchrun.take("procPerNode"), torchrun.at("procPerNode"))
    run.policy(part.part("runPolicy"), "cleanUpPolicy")
    scheduler = part.part("scheduler").part("t9kScheduler")
    run.option("queue", scheduler, "queue")
    run.option("queue_rank", scheduler, "priority")
    board = part.part("tensorboardSpec")
    if board.data:
        told = {"image": board.take("image"), "log_filesets": board.take("trainingLogFilesets", [])}
        told = {key: value for key, value in told.items() if value is not None}
        run.set_field("engine_options.tensorboard", told, board.path)
    part.only("runMode", {}, why="nothing: say it as engine_options.debug or engine_options.pause")
    if guide:
        run.options["form"] = "guide"
    template = one.part("template")
    on = bool(enabled or enable)
    take_template(
        template, run, "python", theirs="python", torchrun=on, procs=procs, operator=Scope(unknown=_PER_POD)
    )
