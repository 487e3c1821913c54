"""Pods made at random from a seed: what people write of them, and what is rare.

Hypothesis' own strategies take a quarter of a second for one manifest; these take a millisecond.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

Plain = dict[str, Any]
Make = Callable[[random.Random], Any]

#: How likely a field that may be left out is there: most manifests say little, some say all.
_LIKELY = (0.02, 0.05, 0.1, 0.2, 0.6)

#: Which are mostly refused, or make a pod of another kind.
_RARE = (
    *("finalizers", "ownerReferences", "suspend", "initializer", "managedBy", "activeDeadlineSeconds"),
    *("runMode", "backoffLimitPerIndex", "maxFailedIndexes", "podFailurePolicy", "successPolicy"),
    *(
        "podReplacementPolicy",
        "manualSelector",
        "restartPolicy",
        "restartPolicyRules",
        "selector",
        "apiGroup",
    ),
    *("ephemeralContainers", "podTemplateOverrides", "runtimePatches"),
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
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
        {"fileKeyRef": {"volumeName": "a", "path": "x.env", "key": "k", "optional": True}},
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
hooks = one_of(
    mapping({"exec": mapping(command=some(words))}),
    mapping({"httpGet": mapping({"port": sampled_from([8080, "http"])}, path=just("/healthz"))}),
    mapping({"tcpSocket": mapping({"port": sampled_from([22, "ssh"])})}),
)
probes = builds(
    lambda how, when: {**how, **when},
    one_of(hooks, mapping({"grpc": mapping({"port": just(50051)}, service=words)})),
    mapping(
        initialDelaySeconds=numbers,
        periodSeconds=numbers,
        timeoutSeconds=numbers,
        failureThreshold=numbers,
        successThreshold=just(1),
        terminationGracePeriodSeconds=numbers,
    ),
)
lifecycles = mapping(postStart=hooks, preStop=hooks, stopSignal=sampled_from(["SIGUSR1", "SIGTERM"]))
restart_rules = mapping(
    {"action": sampled_from(["Restart", "RestartAllContainers"])},
    exitCodes=just({"operator": "In", "values": [42]}),
)
containers = mapping(
    {"name": names},
    image=sampled_from(["img:1", "r/img@sha256:0"]),
    imagePullPolicy=sampled_from(["Always", "IfNotPresent", "Sometimes"]),
    workingDir=just("/app"),
    env=some(variables, 4),
    envFrom=some(
        sampled_from([{"configMapRef": {"name": "c"}}, {"prefix": "S_", "secretRef": {"name": "s"}}])
    ),
    resources=mapping(limits=amounts, requests=amounts, claims=some(mapping({"name": names}))),
    volumeMounts=some(
        mapping(
            {"name": names, "mountPath": sampled_from(["/a", "/dev/shm", "/b"])},
            readOnly=booleans(),
            subPath=words,
            subPathExpr=just("$(POD_NAME)"),
            mountPropagation=just("HostToContainer"),
            recursiveReadOnly=just("IfPossible"),
        )
    ),
    volumeDevices=some(mapping({"name": names, "devicePath": just("/dev/x")})),
    ports=some(
        mapping(
            {"containerPort": sampled_from([80, 9090])}, protocol=sampled_from(["TCP", "UDP"]), name=words
        )
    ),
    securityContext=mapping(
        privileged=booleans(),
        capabilities=mapping(add=some(words), drop=some(words)),
        seccompProfile=just({"type": "RuntimeDefault"}),
    ),
    startupProbe=probes,
    readinessProbe=probes,
    livenessProbe=probes,
    lifecycle=lifecycles,
    stdin=booleans(),
    stdinOnce=booleans(),
    tty=booleans(),
    terminationMessagePath=just("/x"),
    terminationMessagePolicy=sampled_from(["File", "FallbackToLogsOnError"]),
    restartPolicy=sampled_from(["Always", "Never", "OnFailure"]),
    restartPolicyRules=some(restart_rules),
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
sources_of_volumes = sampled_from(
    [
        {"emptyDir": {}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        {"hostPath": {"path": "/data", "type": "Directory"}},
        {"persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {
            "configMap": {
                "name": "c",
                "items": [{"key": "k", "path": "p", "mode": 0o400}],
                "defaultMode": 0o644,
            }
        },
        {"secret": {"secretName": "s", "optional": True}},
        {"nfs": {"server": "files", "path": "/x"}},
        {"csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "b"}}},
        {"image": {"reference": "r/weights:1", "pullPolicy": "IfNotPresent"}},
        {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}},
        {
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "100Gi"}},
                    }
                }
            }
        },
        {"emptyDir": {}, "hostPath": {"path": "x-1"}},
    ]
)
claims = one_of(
    mapping({"name": names, "resourceClaimTemplateName": just("one-gpu")}),
    mapping({"name": names, "resourceClaimName": just("shared-gpu")}),
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
    ephemeralContainers=some(mapping({"name": names}, image=just("busybox"), targetContainerName=names)),
    hostNetwork=booleans(),
    hostIPC=booleans(),
    hostPID=booleans(),
    hostUsers=booleans(),
    hostname=words,
    hostnameOverride=words,
    imagePullSecrets=some(mapping({"name": names})),
    initContainers=some(containers, 1),
    nodeName=words,
    nodeSelector=maps,
    os=just({"name": "linux"}),
    overhead=amounts,
    preemptionPolicy=sampled_from(["Never", "PreemptLowerPriority"]),
    priority=sampled_from([0, 1000, -5]),
    priorityClassName=just("high"),
    readinessGates=some(mapping({"conditionType": words})),
    resourceClaims=some(claims),
    resources=mapping(limits=amounts, requests=amounts),
    restartPolicy=sampled_from(["Never", "OnFailure", "Always"]),
    runtimeClassName=just("nvidia"),
    schedulerName=just("other"),
    schedulingGates=some(mapping({"name": sampled_from(["example.com/quota", "example.com/data"])})),
    schedulingGroup=mapping(podGroupName=just("mine")),
    securityContext=mapping(
        runAsUser=numbers,
        fsGroup=numbers,
        runAsNonRoot=booleans(),
        supplementalGroups=some(numbers),
        sysctls=some(mapping({"name": just("net.core.somaxconn"), "value": just("1024")})),
    ),
    serviceAccountName=just("trainer"),
    serviceAccount=just("trainer"),
    setHostnameAsFQDN=booleans(),
    shareProcessNamespace=booleans(),
    subdomain=words,
    terminationGracePeriodSeconds=integers(0, 90),
    tolerations=some(mapping({"key": words}, operator=just("Exists"), tolerationSeconds=numbers)),
    topologySpreadConstraints=some(
        mapping(
            {"topologyKey": sampled_from(["zone", "node"])},
            maxSkew=numbers,
            whenUnsatisfiable=sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
            labelSelector=mapping(matchLabels=maps),
            matchLabelKeys=some(words),
            minDomains=numbers,
            nodeAffinityPolicy=just("Honor"),
            nodeTaintsPolicy=just("Ignore"),
        )
    ),
    volumes=some(builds(lambda name, source: {"name": name, **source}, names, sources_of_volumes)),
)
metadata = mapping(
    labels=maps,
    annotations=maps,
    creationTimestamp=just("2026-01-01T00:00:00Z"),
    finalizers=some(words),
    ownerReferences=some(mapping({"uid": words})),
)
templates = mapping({"spec": pods}, metadata=metadata)
