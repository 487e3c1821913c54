"""Manifests of all five kinds, made at random from a seed: what people write, what is rare, and what is damaged."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from tests.support.kubernetes.random_pods import (
    Plain,
    amounts,
    booleans,
    builds,
    commands,
    containers,
    integers,
    just,
    mapping,
    maps,
    metadata,
    numbers,
    one_of,
    sampled_from,
    some,
    templates,
    trainers,
    variables,
    words,
)

counts = sampled_from([0, 1, 2, 2, 2, 3, 4])
run_policy = mapping(
    backoffLimit=counts,
    activeDeadlineSeconds=integers(1, 99),
    cleanPodPolicy=sampled_from(["None", "All", "Running"]),
    ttlSecondsAfterFinished=counts,
    schedulingPolicy=mapping(minAvailable=counts, queue=words),
    suspend=booleans(),
    managedBy=words,
)
restart_policies = sampled_from(["OnFailure"] * 9 + ["Never", "ExitCode", "Sometimes"])
jobs = mapping(
    {"template": templates},
    parallelism=counts,
    completions=counts,
    completionMode=sampled_from(["Indexed", "NonIndexed"]),
    backoffLimit=counts,
    activeDeadlineSeconds=integers(1, 99),
    ttlSecondsAfterFinished=counts,
    suspend=booleans(),
    backoffLimitPerIndex=counts,
    maxFailedIndexes=counts,
    podFailurePolicy=mapping(
        rules=some(
            sampled_from(
                [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                ]
            )
        )
    ),
    successPolicy=mapping(rules=some(just({"succeededIndexes": "0", "succeededCount": 1}))),
    managedBy=just("kueue.x-k8s.io/multikueue"),
    podReplacementPolicy=sampled_from(["Failed", "TerminatingOrFailed"]),
    selector=mapping(matchLabels=maps),
    manualSelector=booleans(),
)
native_gangs = mapping(
    schedulingPolicy=one_of(
        mapping({"gang": mapping(minCount=counts)}),
        mapping({"gang": mapping(minCount=counts)}),
        mapping({"gang": mapping(minCount=counts)}),
        mapping({"basic": just({})}),
    ),
    schedulingConstraints=mapping(
        topology=some(mapping({"key": sampled_from(["topology.kubernetes.io/zone", "rack"])}))
    ),
    disruptionMode=sampled_from([{"all": {}}, {"single": {}}]),
    priorityClassName=just("high"),
)
like = mapping({"replicas": integers(0, 3), "restartPolicy": restart_policies})
pytorch_replicas = one_of(
    builds(lambda one, t: {"Worker": {**one, "template": t}}, like, templates),
    builds(lambda one, t: {"Master": {**one, "replicas": 1, "template": t}}, like, templates),
    builds(
        lambda a, t, b: {"Master": {"template": copy.deepcopy(t), **b}, "Worker": {**a, "template": t}},
        like,
        templates,
        mapping(restartPolicy=restart_policies),
    ),
    builds(
        lambda a, t, u: {"Master": {"template": u}, "Worker": {**a, "template": t}},
        like,
        templates,
        templates,
    ),
)
pytorchjobs = mapping(
    {"pytorchReplicaSpecs": pytorch_replicas},
    nprocPerNode=sampled_from(["auto", "gpu", "cpu", "2", 2]),
    elasticPolicy=mapping(
        minReplicas=counts,
        maxReplicas=counts,
        maxRestarts=counts,
        rdzvBackend=just("c10d"),
        rdzvHost=words,
        rdzvId=words,
        rdzvPort=just(29400),
        rdzvConf=some(just({"key": "timeout", "value": "600"})),
        standalone=booleans(),
        nProcPerNode=counts,
        metrics=some(just({"type": "Resource", "resource": {"name": "cpu"}})),
    ),
    runPolicy=run_policy,
)
trainer = builds(
    lambda one, command: {"image": "img:1", **one, "command": command},
    mapping(
        numNodes=counts,
        numProcPerNode=sampled_from([2, "auto"]),
        args=some(words),
        env=some(variables),
        resourcesPerNode=mapping(limits=amounts, requests=amounts),
    ),
    commands,
)
trainjobs = mapping(
    {
        "trainer": trainer,
        "runtimeRef": mapping(
            {"name": just("torch")},
            kind=sampled_from(["TrainingRuntime", "TrainingRuntime", "Other"]),
            apiGroup=words,
        ),
    },
    suspend=booleans(),
    activeDeadlineSeconds=integers(1, 99),
    labels=maps,
    annotations=maps,
    initializer=mapping(dataset=mapping(storageUri=words)),
    managedBy=words,
    podTemplateOverrides=some(
        mapping({"targetJobs": just([{"name": "node"}])}, spec=mapping(nodeSelector=maps))
    ),
    runtimePatches=some(mapping({"manager": just("team")})),
)
scheduling = {
    "autoScale": booleans(),
    "restartTimeout": numbers,
    "priority": sampled_from(["high", "low", "0.5"]),
    "restartCount": counts,
    "restartPolicy": restart_policies,
}


def _of_master(template: Plain, words: Plain | None) -> Plain:
    """A pod whose command the operator writes, as a rule."""
    main = template["spec"]["containers"][0]
    for word in ("command", "args") if words is not None else ():
        main.pop(word, None)
    return {**template, "spec": {**template["spec"], "containers": [{**main, **(words or {})}]}}


elasticjobs = mapping(
    {
        "replicaSpecs": builds(
            lambda worker, others: {"worker": worker, **others},
            mapping({"template": templates}, replicas=counts, **scheduling),
            mapping(
                **{
                    "dlrover-master": mapping(
                        {
                            "template": builds(
                                _of_master, templates, sampled_from([{}] * 5 + [{"command": []}, None])
                            )
                        },
                        replicas=sampled_from([0, 1, 1, 1, 2]),
                        restartCount=counts,
                        restartPolicy=restart_policies,
                    ),
                    "ps": mapping({"template": templates}, replicas=counts, **scheduling),
                }
            ),
        )
    },
    distributionStrategy=sampled_from(["AllreduceStrategy", "ParameterServerStrategy"]),
    optimizeMode=sampled_from(["manual", "single-job", "cluster"]),
    brainService=words,
    resourceLimits=mapping(cpu=sampled_from(["5", 5, 0.5, 2.0]), memory=sampled_from(["8Gi", 1e9])),
    envs=mapping(a=mapping(b=words)),
    suspend=booleans(),
    enableDynamicSharding=booleans(),
    enableElasticScheduling=booleans(),
)
trainingjobs = mapping(
    {
        "replicaSpecs": some(
            mapping(
                {"template": templates},
                type=sampled_from(["worker", "worker", "ps"]),
                replicas=counts,
                restartPolicy=restart_policies,
                scalingWeight=numbers,
            ),
            1,
            1,
        )
    },
    torchrunConfig=mapping(
        enabled=booleans(),
        enable=booleans(),
        minNodes=counts,
        maxRestarts=counts,
        procPerNode=sampled_from(["gpu", "2", 2]),
        rdzvBackend=sampled_from(["c10d", "etcd"]),
        extraOptions=some(words),
    ),
    elastic=mapping(enabled=booleans(), minReplicas=counts, maxReplicas=counts, expectedReplicas=counts),
    runPolicy=mapping(
        backoffLimit=counts,
        activeDeadlineSeconds=integers(1, 99),
        cleanUpPolicy=sampled_from(["None", "All", "Unfinished"]),
    ),
    scheduler=mapping(t9kScheduler=mapping(queue=words, priority=numbers)),
    tensorboardSpec=mapping(image=words, trainingLogFilesets=some(words)),
    runMode=mapping(debug=mapping(enabled=booleans())),
)

groups = mapping(
    minMember=sampled_from([1, 2, 2, 3]),
    queue=sampled_from(["team", "team", "other"]),
    priorityClassName=just("high"),
    minResources=sampled_from([{"cpu": "1"}, {"cpu": 1, "memory": "16Gi"}, {}]),
    minTaskMember=just({"worker": 2}),
)
of_groups = mapping(
    namespace=just("default"),
    labels=maps,
    creationTimestamp=just("2026-01-01T00:00:00Z"),
    finalizers=some(words),
)

runtimes = builds(
    lambda policy, node, more: {
        "mlPolicy": policy,
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {"spec": {"template": {"spec": {"containers": [node, *more]}}}},
                    }
                ]
            }
        },
    },
    mapping(numNodes=counts, torch=mapping(numProcPerNode=sampled_from(["auto", "cpu", "gpu", 2, "2"]))),
    builds(lambda one: {**one, "name": "node"}, trainers),
    some(builds(lambda one: {**one, "name": "beside"}, containers), 1),
)

KINDS = {
    "Job": ("batch/v1", jobs),
    "PyTorchJob": ("kubeflow.org/v1", pytorchjobs),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", trainjobs),
    "ElasticJob": ("elastic.iml.github.io/v1alpha1", elasticjobs),
    "PyTorchTrainingJob": ("batch.tensorstack.dev/v1beta1", trainingjobs),
}

ANYTHING = [
    *(
        None,
        "",
        "text",
        "5",
        "2026-01-01",
        "$(A)",
        0,
        -1,
        5,
        2.5,
        2.0,
        10**12,
        True,
        False,
        [],
        {},
        [None],
        ["x"],
    ),
    *([5], [{}], {"x": 1}, {"x": None}),
]


def made(kind: str, seed: int) -> Plain:
    """A manifest, as somebody may have it; or a List of it and what it takes the rest from."""
    return _in_one([*_with_others(_made(kind, random.Random(seed)), seed)])


def damaged(kind: str, seed: int) -> Plain:
    """A manifest in which one value is another one, one field is gone, or one that nobody knows has come."""
    r = random.Random(seed)
    objects = [*_with_others(_made(kind, r), seed)]
    parts = [{name: one[name] for name in ("metadata", "spec")} for one in objects]
    holder, key = r.choice([place for part in parts for place in _places(part)])
    how = r.choice(["another", "another", "gone", "unknown"])
    if how == "gone" and isinstance(holder, dict):
        del holder[key]
    elif how == "unknown" and isinstance(holder[key], dict):
        holder[key]["unheardOf"] = r.choice(["x", 1, {"a": 1}, ["b"]])
    else:
        holder[key] = copy.deepcopy(r.choice(ANYTHING))
    return _in_one(objects)


def _in_one(objects: list[Plain]) -> Plain:
    return objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}


def _made(kind: str, r: random.Random) -> Plain:
    api, spec = KINDS[kind]
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": "fit", **metadata(r)}, "spec": spec(r)}
    return {**manifest, "status": {"phase": "x"}} if r.random() < 0.1 else manifest


def _with_others(manifest: Plain, seed: int) -> Iterator[Plain]:
    yield manifest
    yield from _with_gang(manifest, random.Random(f"gang {seed}"))
    yield from _with_runtime(manifest, random.Random(f"runtime {seed}"))


def _with_runtime(manifest: Plain, r: random.Random) -> Iterator[Plain]:
    """In one of three the runtime of a TrainJob is beside it, which then leaves image and command to it."""
    if manifest["kind"] != "TrainJob" or r.random() > 0.3:
        return
    for word in ("image", "command", "args", "numNodes"):
        if r.random() < 0.5:
            manifest["spec"]["trainer"].pop(word, None)
    kind = manifest["spec"]["runtimeRef"].get("kind", "ClusterTrainingRuntime")
    head = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind}
    yield {**head, "metadata": {"name": r.choice(["torch", "torch", "other"])}, "spec": runtimes(r)}


def _with_gang(manifest: Plain, r: random.Random) -> Iterator[Plain]:
    """In one of five the pods of a Job or PyTorchJob are a gang of Volcano's, in whatever words, with the PodGroup that
    they name; and in one of ten those of a Job one of Kubernetes' own.
    """
    spec = manifest["spec"]
    of = {"Job": [spec], "PyTorchJob": [*spec.get("pytorchReplicaSpecs", {}).values()]}.get(manifest["kind"])
    draw = r.random()
    if manifest["kind"] == "Job" and draw > 0.9:
        spec.update(scheduling=native_gangs(r), parallelism=2, completions=2)
    if of is None or draw > 0.2:
        return
    if manifest["kind"] == "Job" and r.random() < 0.5:
        spec.update(parallelism=3, completions=3)
    said: Plain = {}
    for key, likely, values in (
        ("scheduling.volcano.sh/queue-name", 0.5, ["team", "team", "team", "other"]),
        ("scheduling.volcano.sh/group-min-member", 0.4, ["1", "2", "2", "3", "some"]),
        ("scheduling.volcano.sh/group-min-resources", 0.05, ['{"cpu": "2"}']),
        ("scheduling.k8s.io/group-name", 0.3, ["mine"]),
    ):
        if r.random() < likely:
            said[key] = r.choice(values)
    on_owner, named = r.random() < 0.5, r.random() < 0.8
    for holder in [manifest] if on_owner else [one["template"] for one in of]:
        notes = holder.setdefault("metadata", {}).setdefault("annotations", {})
        notes.update(said)
    for one in of if named else ():
        one["template"]["spec"]["schedulerName"] = "volcano"
    if manifest["kind"] == "PyTorchJob" and r.random() < 0.5:
        spec.setdefault("runPolicy", {})["schedulingPolicy"] = mapping(
            minAvailable=sampled_from([1, 2, 2, 3]),
            queue=just("team"),
            priorityClass=just("high"),
            minResources=sampled_from([{"cpu": "1"}, {}]),
            scheduleTimeoutSeconds=numbers,
        )(r)
    if "scheduling.k8s.io/group-name" in said and r.random() < 0.9:
        group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": groups(r)}
        yield {**group, "metadata": {"name": r.choice(["mine", "mine", "mine", "other"]), **of_groups(r)}}


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield found, key
        if isinstance(value, dict | list):
            yield from _places(value)
