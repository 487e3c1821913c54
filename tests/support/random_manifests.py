"""Manifests of all five kinds, made at random from a seed: what people write, what is rare, and what is damaged.

Hypothesis' own strategies take a quarter of a second for one such manifest; these take a millisecond.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Plain = dict[str, Any]
Make = Callable[[random.Random], Any]

#: How likely a field that may be left out is there: most manifests say little, some say all.
_LIKELY = (0.02, 0.05, 0.1, 0.2, 0.6)

#: Which are mostly refused.
_RARE = (
    *(
        "finalizers",
        "ownerReferences",
        "suspend",
        "initializer",
        "managedBy",
        "activeDeadlineSeconds",
        "runMode",
    ),
    *(
        "backoffLimitPerIndex",
        "podFailurePolicy",
        "podReplacementPolicy",
        "restartPolicy",
        "selector",
        "apiGroup",
    ),
)


def sampled_from(values: list[Any]) -> Make:
    return lambda r: copy.deepcopy(r.choice(values))


def just(value: Any) -> Make:
    return lambda r: copy.deepcopy(value)


def integers(least: int, most: int) -> Make:
    return lambda r: r.randint(least, most)


def booleans() -> Make:
    return lambda r: r.random() < 0.5


def some(make: Make, most: int = 2, least: int = 0) -> Make:
    return lambda r: [make(r) for _ in range(r.randint(least, most))]


def dictionaries(keys: Make, values: Make, max_size: int) -> Make:
    return lambda r: {keys(r): values(r) for _ in range(r.randint(0, max_size))}


def one_of(*makes: Make) -> Make:
    return lambda r: r.choice(makes)(r)


def builds(build: Callable[..., Any], *makes: Make) -> Make:
    return lambda r: build(*(make(r) for make in makes))


def mapping(required: dict[str, Make] | None = None, /, **optional: Make) -> Make:
    def make(r: random.Random) -> Plain:
        likely = r.choice(_LIKELY)
        there = {
            name: one for name, one in optional.items() if r.random() < likely * (name not in _RARE or 0.1)
        }
        return {name: one(r) for name, one in {**(required or {}), **there}.items()}

    return make


words = sampled_from(["a", "x-1", "team", "true", "5", ""])
names = sampled_from(["a", "b", "trainer", "pytorch", "main", "python", "node", "volume-0", "shared-memory"])
numbers = integers(0, 9)
maps = dictionaries(sampled_from(["app", "tier", "example.com/x", "job-name"]), words, max_size=2)
amounts = dictionaries(
    sampled_from(["cpu", "memory", "nvidia.com/gpu", "example.com/nic", "hugepages-2Mi"]),
    sampled_from(["1", "500m", "8Gi", 2, 1e9, 0.5, ".5", "12E8", "4"]),
    max_size=3,
)


sources = sampled_from(
    [
        {"secretKeyRef": {"name": "s", "key": "k"}},
        {"fieldRef": {"fieldPath": "metadata.name"}},
        {"configMapKeyRef": {}},
    ]
)
variables = one_of(
    mapping(
        {
            "name": sampled_from(
                ["A", "B", "NCCL_DEBUG", "C", "D", "PYTHONUNBUFFERED", "PET_NNODES", "PET_LOG_DIR"]
            )
        },
        value=sampled_from(["", "x", "1", "$(A)", "$$(A)", "2"]),
    ),
    mapping(
        {
            "name": sampled_from(
                ["A", "B", "C", "TOKEN", "TOKEN", "E", "PET_NPROC_PER_NODE", "AIRFLOW_ELASTIC_JOB"]
            ),
            "valueFrom": sources,
        }
    ),
)
COMMON = [["python", "train.py"], ["torchrun", "--nproc_per_node=2", "train.py"], ["torchrun", "train.py"]]
commands = sampled_from(
    [
        *COMMON * 4,
        *(
            ["./train"],
            ["tini", "--", "torchrun", "--nproc_per_node=1", "-m", "pkg"],
            ["timeout", "1h", "torchrun", "t.py"],
        ),
        *(
            ["bash", "-c", "cd /x && torchrun train.py"],
            ["sh", "-c", "torchrun train.py $A"],
            ["python", "t.py", "$(A)"],
        ),
        *(
            ["accelerate", "launch", "--num_processes=4", "t.py"],
            ["dlrover-run", "--nnodes=1:4", "t.py"],
            ["mpirun", "x"],
        ),
    ]
)
containers = mapping(
    {"name": names},
    image=sampled_from(["img:1", "r/img@sha256:0"]),
    imagePullPolicy=sampled_from(["Always", "IfNotPresent", "Sometimes"]),
    workingDir=just("/app"),
    env=some(variables, 4),
    envFrom=some(just({"configMapRef": {"name": "c"}})),
    resources=mapping(limits=amounts, requests=amounts, claims=some(mapping({"name": names}))),
    volumeMounts=some(
        mapping(
            {"name": names, "mountPath": sampled_from(["/a", "/dev/shm", "/b"])},
            readOnly=booleans(),
            subPath=words,
        )
    ),
    volumeDevices=some(mapping({"name": names, "devicePath": just("/dev/x")})),
    ports=some(
        mapping(
            {"containerPort": sampled_from([80, 9090])}, protocol=sampled_from(["TCP", "UDP"]), name=words
        )
    ),
    securityContext=mapping(privileged=booleans(), capabilities=mapping(add=some(words), drop=some(words))),
    livenessProbe=mapping(exec=mapping(command=some(words)), periodSeconds=numbers),
    lifecycle=mapping(preStop=mapping(exec=mapping(command=some(words)))),
    stdin=booleans(),
    terminationMessagePath=just("/x"),
    terminationMessagePolicy=sampled_from(["File", "FallbackToLogsOnError"]),
    restartPolicy=just("Always"),
    resizePolicy=some(mapping({"resourceName": words, "restartPolicy": words})),
)
trainers = builds(
    lambda one, command, args: {"image": "img:1", **one, "command": command, **args},
    containers,
    commands,
    mapping(args=some(sampled_from(["--lr", "0.1"]))),
)
affinities = mapping(
    nodeAffinity=mapping(
        requiredDuringSchedulingIgnoredDuringExecution=mapping(
            {
                "nodeSelectorTerms": some(
                    mapping(matchExpressions=some(mapping({"key": words, "operator": just("Exists")})))
                )
            }
        ),
        preferredDuringSchedulingIgnoredDuringExecution=some(
            mapping({"weight": numbers, "preference": just({})})
        ),
    ),
    podAntiAffinity=mapping(
        requiredDuringSchedulingIgnoredDuringExecution=some(mapping({"topologyKey": words}))
    ),
)
pods = mapping(
    {"containers": builds(lambda main, others: [main, *others], trainers, some(containers, 1))},
    activeDeadlineSeconds=numbers,
    affinity=affinities,
    automountServiceAccountToken=booleans(),
    dnsPolicy=just("Default"),
    dnsConfig=mapping(nameservers=some(words), options=some(mapping({"name": words}, value=words))),
    enableServiceLinks=booleans(),
    hostAliases=some(mapping({"ip": sampled_from(["10.0.0.1", "10.0.0.2"])}, hostnames=some(words))),
    hostNetwork=booleans(),
    hostIPC=booleans(),
    hostname=words,
    imagePullSecrets=some(mapping({"name": names})),
    initContainers=some(containers, 1),
    nodeName=words,
    nodeSelector=maps,
    overhead=amounts,
    priorityClassName=just("high"),
    readinessGates=some(mapping({"conditionType": words})),
    restartPolicy=sampled_from(["Never", "OnFailure", "Always"]),
    runtimeClassName=just("nvidia"),
    schedulerName=just("other"),
    securityContext=mapping(runAsUser=numbers, fsGroup=numbers),
    serviceAccountName=just("trainer"),
    serviceAccount=just("trainer"),
    shareProcessNamespace=booleans(),
    subdomain=words,
    terminationGracePeriodSeconds=integers(0, 90),
    tolerations=some(mapping({"key": words}, operator=just("Exists"), tolerationSeconds=numbers)),
    topologySpreadConstraints=some(
        mapping(
            {"topologyKey": sampled_from(["zone", "node"])},
            maxSkew=numbers,
            whenUnsatisfiable=sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
        )
    ),
    volumes=some(
        mapping(
            {"name": names},
            emptyDir=sampled_from([{}, {"medium": "Memory"}]),
            hostPath=mapping({"path": words}),
        )
    ),
)
metadata = mapping(
    labels=maps,
    annotations=maps,
    creationTimestamp=just("2026-01-01T00:00:00Z"),
    finalizers=some(words),
    ownerReferences=some(mapping({"uid": words})),
)
templates = mapping({"spec": pods}, metadata=metadata)
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
    podFailurePolicy=mapping(rules=some(mapping())),
    podReplacementPolicy=sampled_from(["Failed", "TerminatingOrFailed"]),
    selector=mapping(matchLabels=maps),
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
        nProcPerNode=counts,
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
)
scheduling = {
    "autoScale": booleans(),
    "restartTimeout": numbers,
    "priority": sampled_from(["high", "low", "0.5"]),
    "restartCount": counts,
    "restartPolicy": restart_policies,
}
elasticjobs = mapping(
    {
        "replicaSpecs": builds(
            lambda worker, others: {"worker": worker, **others},
            mapping({"template": templates}, replicas=counts, **scheduling),
            mapping(
                **{
                    "dlrover-master": mapping({"template": templates}),
                    "ps": mapping({"template": templates}, replicas=counts, **scheduling),
                }
            ),
        )
    },
    distributionStrategy=sampled_from(["AllreduceStrategy", "ParameterServerStrategy"]),
    optimizeMode=sampled_from(["manual", "single-job", "cluster"]),
    brainService=words,
    resourceLimits=mapping(cpu=sampled_from(["5", 5]), memory=just("8Gi")),
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
    """A manifest, as somebody may have it."""
    return _with_gang(_made(kind, random.Random(seed)), random.Random(f"gang {seed}"))


def damaged(kind: str, seed: int) -> Plain:
    """A manifest in which one value is another one, one field is gone, or one that nobody knows has come."""
    r = random.Random(seed)
    manifest = _with_gang(_made(kind, r), random.Random(f"gang {seed}"))
    holder, key = r.choice([*_places({name: manifest[name] for name in ("metadata", "spec")})])
    how = r.choice(["another", "another", "gone", "unknown"])
    if how == "gone" and isinstance(holder, dict):
        del holder[key]
    elif how == "unknown" and isinstance(holder[key], dict):
        holder[key]["unheardOf"] = r.choice(["x", 1, {"a": 1}, ["b"]])
    else:
        holder[key] = copy.deepcopy(r.choice(ANYTHING))
    return manifest


def _made(kind: str, r: random.Random) -> Plain:
    api, spec = KINDS[kind]
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": "fit", **metadata(r)}, "spec": spec(r)}
    return {**manifest, "status": {"phase": "x"}} if r.random() < 0.1 else manifest


def _with_gang(manifest: Plain, r: random.Random) -> Plain:
    """In one of five the pods of a Job or PyTorchJob are a gang of Volcano's, in whatever words."""
    spec = manifest["spec"]
    of = {"Job": [spec], "PyTorchJob": [*spec.get("pytorchReplicaSpecs", {}).values()]}.get(manifest["kind"])
    if of is None or r.random() > 0.2:
        return manifest
    said: Plain = {}
    for key, likely, values in (
        ("scheduling.volcano.sh/queue-name", 0.5, ["team", "team", "team", "other"]),
        ("scheduling.volcano.sh/group-min-member", 0.4, ["1", "2", "2", "3", "some"]),
        ("scheduling.volcano.sh/group-min-resources", 0.05, ['{"cpu": "2"}']),
        ("scheduling.k8s.io/group-name", 0.05, ["mine"]),
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
    return manifest


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield found, key
        if isinstance(value, dict | list):
            yield from _places(value)
