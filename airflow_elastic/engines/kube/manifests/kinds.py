"""What each kind of job says in a manifest, in the words of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_elastic.engines.kube.manifests.parts import Part, Run, take_container, take_template

_NOT_NOW = "false: a run begins when it is submitted, and waits in a queue where one is named"


def _job(part: Part, run: Run) -> None:
    run.plain["engine"] = "job"
    parallelism, completions = part.take("parallelism", 1), part.take("completions", 1)
    if parallelism != completions:
        part.refuse("completions", completions, f"as parallelism, {parallelism}: all workers train together")
    run.number(parallelism)
    part.only("completionMode", "Indexed", "NonIndexed", why="Indexed or NonIndexed")
    part.only("suspend", False, why=_NOT_NOW)
    run.limits(part)
    if (ttl := part.take("ttlSecondsAfterFinished")) is not None:
        run.options["ttl_seconds"] = ttl
    take_template(part.part("template"), run, "trainer")


def _pytorchjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "pytorchjob"
    replicas = part.part("pytorchReplicaSpecs")
    names = [name for name in ("Master", "Worker") if name in replicas.data]
    if not names:
        replicas.refuse("Worker", None, "a Worker or a Master")
        return
    counts, templates = {}, {}
    for name in names:
        one = replicas.part(name)
        counts[name] = one.take("replicas", 1)
        run.restart["policy"] = one.take("restartPolicy", "OnFailure")
        templates[name] = one.part("template")
    if len(names) == 2:
        if templates["Master"].data != templates["Worker"].data:
            replicas.refuse(
                "Master.template", "another one", "as Worker.template: all workers of a run are alike"
            )
        templates["Master"].rest()
        run.options["master"] = True
    before = counts.get("Master", 0) if "Worker" in counts else 0
    elastic = part.part("elasticPolicy")
    least, most = elastic.take("minReplicas"), elastic.take("maxReplicas")
    run.number(sum(counts.values()), *(None if n is None else n + before for n in (least, most)))
    limit = elastic.data.get("maxRestarts")
    if told := elastic.rest():
        run.options["elastic_policy"] = told
    elif (least, most) != (None, None):
        run.options["elastic_policy"] = {}
    policy = part.part("runPolicy")
    run.policy(policy, "cleanPodPolicy")
    if limit is not None:
        run.restart.setdefault("backoff_limit", limit)
    if (ttl := policy.take("ttlSecondsAfterFinished")) is not None:
        run.options["ttl_seconds"] = ttl
    if told := policy.rest():
        run.options["run_policy"] = told
    procs = part.take("nprocPerNode")
    take_template(templates[names[-1]], run, "pytorch", theirs="pytorch", procs=procs)


def _trainjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "trainjob"
    ref = part.part("runtimeRef")
    ref.drop("apiGroup")
    run.options["runtime"] = {"name": ref.take("name"), "kind": ref.take("kind", "ClusterTrainingRuntime")}
    part.only("suspend", False, why=_NOT_NOW)
    run.limits(part)
    for word in ("labels", "annotations"):
        if told := part.take(word):
            run.options[word] = {**run.options.get(word, {}), **told}
    trainer = part.part("trainer")
    run.number(trainer.take("numNodes", 1))
    procs = trainer.take("numProcPerNode")
    trainer.data["resources"] = trainer.take("resourcesPerNode", {})
    if "image" not in trainer.data:
        trainer.refuse("image", None, "the image: what the runtime says is not known here")
    take_container(trainer, run, torchrun=False, procs=None if procs is None else str(procs))
    if mine := trainer.rest():
        run.options["pod_template"] = {"spec": {"containers": [{"name": "node", **mine}]}}


def _elasticjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "elasticjob"
    words = {
        "distributionStrategy": "distribution_strategy",
        "optimizeMode": "optimize_mode",
        "brainService": "brain_service",
        "resourceLimits": "resource_limits",
        "envs": "envs",
        "suspend": "suspend",
        "enableDynamicSharding": "enable_dynamic_sharding",
        "enableElasticScheduling": "enable_elastic_scheduling",
    }
    for theirs, ours in words.items():
        if (value := part.take(theirs)) is not None:
            run.options[ours] = value
    replicas = part.part("replicaSpecs")
    for name in [*replicas.data]:
        one = replicas.part(name)
        one.drop("restartPolicy")
        if name == "worker":
            run.number(one.take("replicas", 1))
            if (limit := one.take("restartCount")) is not None:
                run.restart["backoff_limit"] = limit
            run.options |= _scheduling(one)
            take_template(one.part("template"), run, "main", theirs="main")
        elif name == "dlrover-master":
            one.drop("replicas", "restartCount")
            template = _named_main(one.part("template").rest())
            for word in ("command", "args"):
                if template["spec"]["containers"][0].get(word):
                    why = "nothing: it names the job, of which each attempt has one of its own"
                    one.refuse(f"template.spec.containers.0.{word}", "a command", why)
            run.options["master"] = {"pod_template": template}
        else:
            template = _named_main(one.part("template").rest())
            main = template["spec"]["containers"][0]
            run.options.setdefault("replicas", {})[name] = {
                "replicas": one.take("replicas", 1),
                "command": [*main.pop("command", []), *main.pop("args", [])],
                "restart_count": one.take("restartCount", 3),
                "pod_template": template,
                **_scheduling(one),
            }


def _scheduling(part: Part) -> dict[str, Any]:
    words = {"autoScale": "auto_scale", "restartTimeout": "restart_timeout", "priority": "priority"}
    found = {ours: part.take(theirs) for theirs, ours in words.items()}
    return {name: value for name, value in found.items() if value is not None}


def _named_main(template: dict[str, Any]) -> dict[str, Any]:
    """With its first container called as the operator wants it, and as ours is that it is laid over."""
    first, *others = template["spec"]["containers"]
    spec = {**template["spec"], "containers": [{**first, "name": "main"}, *others]}
    return {**template, "spec": {key: value for key, value in spec.items() if key != "restartPolicy"}}


def _pytorchtrainingjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "pytorchtrainingjob"
    specs = part.take("replicaSpecs", [])
    if len(specs) != 1:
        part.refuse("replicaSpecs", len(specs), "one entry: all workers of a run are alike")
        return
    one = Part(specs[0], "spec.replicaSpecs.0", part.problems)
    one.drop("type")
    count = one.take("replicas", 1)
    run.restart["policy"] = one.take("restartPolicy", "Never")
    if (weight := one.take("scalingWeight")) is not None:
        run.options["scaling_weight"] = weight
    torchrun = part.part("torchrunConfig")
    guide = "enable" in torchrun.data or "minNodes" in torchrun.data
    on = bool(torchrun.take("enabled") or torchrun.take("enable"))
    least = torchrun.take("minNodes")
    elastic = part.part("elastic")
    if elastic.take("enabled"):
        count = elastic.take("expectedReplicas", count)
        run.number(count, elastic.take("minReplicas"), elastic.take("maxReplicas"))
    else:
        elastic.drop("minReplicas", "maxReplicas", "expectedReplicas")
        run.number(count, least, count if least else None)
    if (limit := torchrun.take("maxRestarts")) is not None:
        run.restart["backoff_limit"] = limit
    if (backend := torchrun.take("rdzvBackend")) is not None:
        run.options["rdzv_backend"] = backend
    if extra := torchrun.take("extraOptions"):
        run.options["torchrun_options"] = extra
    procs = torchrun.take("procPerNode")
    run.policy(part.part("runPolicy"), "cleanUpPolicy")
    scheduler = part.part("scheduler").part("t9kScheduler")
    for theirs, ours in (("queue", "queue"), ("priority", "queue_rank")):
        if (value := scheduler.take(theirs)) is not None:
            run.options[ours] = value
    board = part.part("tensorboardSpec")
    if board.data:
        run.options["tensorboard"] = {
            "image": board.take("image"),
            "log_filesets": board.take("trainingLogFilesets", []),
        }
    part.only("runMode", {}, why="nothing: say it as engine_options.debug or engine_options.pause")
    if guide:
        run.options["form"] = "guide"
    told = None if procs is None else str(procs)
    take_template(one.part("template"), run, "python", theirs="python", torchrun=on, procs=told)
    one.end()


READERS: Mapping[tuple[str, Any], Callable[[Part, Run], None]] = {
    ("batch", "Job"): _job,
    ("kubeflow.org", "PyTorchJob"): _pytorchjob,
    ("trainer.kubeflow.org", "TrainJob"): _trainjob,
    ("elastic.iml.github.io", "ElasticJob"): _elasticjob,
    ("batch.tensorstack.dev", "PyTorchTrainingJob"): _pytorchtrainingjob,
}
