"""Whatever a manifest holds: each field ends unchanged in what is rendered, or in an error that names it.

What is meant to change hands is listed here, in the readers of each kind, as docs/reference/manifests.md lists it.
These tests fail for a field that is neither there, nor found again, nor named by an error.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.engines.quantities import written
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec
from tests.support.kubernetes.random_manifests import KINDS, damaged, made

Plain = dict[str, Any]

# -- what changes hands ------------------------------------------------------------------------------------------------

#: What an API server, or a controller, has written; and what is read as options of torchrun.
BY_SERVER = ("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields")
BY_CONTROLLER = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
TORCHRUN = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_MAX_RESTARTS", "PYTHONUNBUFFERED")


def normal(found: Any) -> Any:
    """Without what is null: a field that was left out. Of text by names, what is null is empty."""
    if isinstance(found, dict):
        texts = ("labels", "annotations", "nodeSelector")
        return {
            key: {k: "" if v is None else v for k, v in value.items()}
            if key in texts and isinstance(value, dict)
            else normal(value)
            for key, value in found.items()
            if value is not None
        }
    return [normal(one) for one in found] if isinstance(found, list) else found


def empty(value: Any) -> bool:
    """Whether a value says nothing."""
    if isinstance(value, dict):
        return all(map(empty, value.values()))
    return value == []


def missing(found: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """The paths of what is wanted and not found so. Items of lists may have others between them."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            here = f"{path}.{key}".lstrip(".")
            if isinstance(found, dict) and key in found:
                yield from missing(found[key], value, here)
            elif not empty(value):
                yield here
    elif isinstance(wanted, list) and all(isinstance(one, dict) for one in wanted):
        held = found if isinstance(found, list) else []
        if path.endswith("env"):  # a variable without a value is empty text
            held = [one if "valueFrom" in one else {"value": "", **one} for one in held]
        rest: Any = iter(held)
        if path.endswith("env") and not any("$" in str(one.get("value")) for one in wanted):
            # Their order means nothing then.
            rest = held
        for i, one in enumerate(wanted):
            if not any(not [*missing(item, one)] for item in rest):
                yield f"{path}.{i}"
    elif isinstance(found, str) and isinstance(wanted, int | float) and not isinstance(wanted, bool):
        if found != written(wanted):
            yield path
    elif found != wanted or isinstance(found, bool) != isinstance(wanted, bool):
        yield path


def pod_of(template: Plain, trains: int, container: str) -> Plain:
    """What of a template has to be in ours: all but what the run says otherwise, which `handed_over` looks at."""
    wanted = copy.deepcopy(template)
    meta = wanted.setdefault("metadata", {})
    for key in (*BY_SERVER, "name", "namespace", "generateName"):
        meta.pop(key, None)
    meta["labels"] = {k: v for k, v in meta.get("labels", {}).items() if k not in BY_CONTROLLER}
    pod = wanted["spec"]
    pod.pop("restartPolicy", None)
    if pod.get("schedulerName") == "":  # Kubernetes fills in its own
        del pod["schedulerName"]
    main = pod["containers"].pop(trains)
    for key in ("command", "args"):
        main.pop(key, None)
    main["name"] = container
    main["env"] = [one for one in main.get("env", []) if one["name"] not in TORCHRUN]
    for one in main["env"]:
        if "valueFrom" not in one:
            one.setdefault("value", "")
        elif one.get("value") == "":
            one.pop("value")
    pod["containers"].insert(0, main)
    return wanted


#: What ours have, whatever a manifest says.
OURS = ("containers", "restartPolicy", "terminationGracePeriodSeconds", "subdomain")
OURS_OF_MAIN = ("name", "image", "command", "args", "env", "resources", "terminationMessagePolicy")


def added(template: Plain, ours: Plain, main: Plain | None = None, path: str = "") -> Iterator[str]:
    """The paths in a pod of ours of what nobody has said. Of a gang of Volcano's its own is said elsewhere.

    Args:
        template: as the manifest has it.
        ours: as it is rendered.
        main: the container in it that becomes our first.
        path: of the template.
    """
    given, pod = template["spec"], ours["spec"]
    in_gang = "scheduling.k8s.io/group-name" in ours["metadata"]["annotations"]
    theirs = [main, *(one for one in given["containers"] if one is not main)]
    for where, here, there, known in (
        ("spec", pod, given, OURS),
        *(
            (f"spec.containers.{i}", here, there, OURS_OF_MAIN if i == 0 else ())
            for i, (here, there) in enumerate(zip(pod["containers"], theirs, strict=True))
        ),
    ):
        for key, value in here.items():
            of_gang = key in ("schedulerName", "priorityClassName")
            if key in known or empty(value) or (of_gang and in_gang):
                continue
            if key not in there or (isinstance(value, dict | list) and len(value) != len(there[key])):
                yield f"{path}.{where}.{key} is {value!r}"


def templates_in(found: Any) -> Iterator[Plain]:
    if isinstance(found, dict):
        if isinstance(found.get("spec"), dict) and "containers" in found["spec"]:
            yield found
        for value in found.values():
            yield from templates_in(value)
    elif isinstance(found, list):
        for value in found:
            yield from templates_in(value)


def trains_at(template: Plain, theirs: str | None) -> int:
    """Which container trains, as docs/reference/manifests.md says it."""
    found = template["spec"]["containers"]
    for i, one in enumerate(found):
        if theirs and one.get("name") == theirs:
            return i
    devices = [
        i
        for i, one in enumerate(found)
        if any(
            "/" in name
            for name in one.get("resources", {}).get("limits", {})
            if not name.startswith("hugepages")
        )
    ]
    return devices[0] if len(devices) == 1 else 0


def lost(manifest: Plain, others: list[Plain], spec: RunSpec, items: list[Plain]) -> list[str]:
    """The fields that are neither found again nor handed over to the run.

    Args:
        manifest: what became the run.
        others: what else was in the same file.
        spec: the run.
        items: what is rendered of it.
    """
    kind, whole = manifest["kind"], normal(manifest)
    owner = next(item for item in items if item["kind"] == kind)
    paths: list[str] = []

    def same(path: str, value: Any, ours: Any) -> None:
        if value is not None and value != ours:
            paths.append(f"{path}: {value!r} is {ours!r}")

    paths += read_gang(whole, [normal(one) for one in others if one["kind"] == "PodGroup"], spec, items, same)
    meta = {k: v for k, v in whole["metadata"].items() if k not in (*BY_SERVER, "name", "generateName")}
    meta["labels"] = {k: v for k, v in meta.get("labels", {}).items() if k not in BY_CONTROLLER}
    paths += missing(owner["metadata"], meta, "metadata")
    if whole["metadata"].get("name") == "fit" and not owner["metadata"]["name"].startswith("fit-"):
        paths.append("metadata.name")
    if kind == "TrainJob":
        read_runtime(whole, [normal(one) for one in others], spec, owner, same)
    READ[kind](whole["spec"], spec, owner["spec"], same, paths)
    return paths


def read_gang(
    whole: Plain, groups: list[Plain], spec: RunSpec, items: list[Plain], same: Any
) -> Iterator[str]:
    """Take out of a manifest what says that its pods are a gang of Volcano's: a PodGroup of ours says it.

    Of workers that wait for each other all are needed, whatever the manifest says. What of a PodGroup in the same file
    is not there comes back.
    """
    if spec.engine_options.get("queueing") != "volcano":
        return
    named = set()
    gang = next(item for item in items if item["kind"] == "PodGroup")["spec"]
    policy = whole["spec"].get("runPolicy", {}).get("schedulingPolicy", {})
    told: list[tuple[str, Any]] = [
        ("queue", policy.pop("queue", None)),
        ("minMember", policy.pop("minAvailable", None)),
        ("priorityClassName", policy.pop("priorityClass", None)),
        ("minResources", policy.pop("minResources", None)),
    ]
    for holder in (whole, *templates_in(whole["spec"])):
        notes = holder.get("metadata", {}).get("annotations", {})
        told.append(("queue", notes.pop("scheduling.volcano.sh/queue-name", None)))
        told.append(("minMember", notes.pop("scheduling.volcano.sh/group-min-member", None)))
        named.add(notes.pop("scheduling.k8s.io/group-name", None))
    theirs = {one["metadata"].get("name"): one for one in groups}
    for name in named - {None}:
        body = theirs[name]["spec"]
        words = ("queue", "minMember", "priorityClassName", "minResources")
        told += [(word, body.pop(word, None)) for word in words]
        meta = theirs[name]["metadata"]
        rest = [key for key in meta if key not in (*BY_SERVER, "name", "namespace")]
        yield from (f"PodGroup.metadata.{key}" for key in rest if not empty(meta[key]))
        yield from (f"PodGroup.spec.{key}" for key in body)
    for word, value in told:
        if value is None:
            continue
        if word == "minMember":
            same(word, int(value), spec.workers.at_least)
            same(word, gang[word], int(value) if spec.launcher == "torchrun" else spec.workers.count)
        elif word == "minResources":
            same(word, {name: written(amount) for name, amount in value.items()}, gang.get(word, {}))
        else:
            same(word, value, gang.get(word, ""))


def read_pod(
    path: str, template: Plain, ours: Plain, theirs: str | None, container: str, paths: list[str]
) -> None:
    at = trains_at(template, theirs)
    paths += missing(ours, pod_of(template, at, container), path)
    paths += added(template, ours, template["spec"]["containers"][at], path)


def read_job(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    for word in ("parallelism", "completions", "ttlSecondsAfterFinished"):
        same(f"spec.{word}", theirs.pop(word, None), ours[word])
    same("spec.backoffLimit", theirs.pop("backoffLimit", None), spec.restart.backoff_limit)
    read_deadline(theirs, spec, same, "spec")
    same("spec.suspend", theirs.pop("suspend", False), False)
    same("spec.manualSelector", theirs.pop("manualSelector", None), False)
    read_scheduling(theirs.pop("scheduling", {}), spec, ours, same, paths)
    assert theirs.pop("completionMode", "Indexed") in ("Indexed", "NonIndexed")  # always Indexed
    same("spec.podReplacementPolicy", theirs.pop("podReplacementPolicy", None), "TerminatingOrFailed")
    labels = theirs.pop("selector", {}).get("matchLabels", {})
    paths += [f"spec.selector.{one}" for one in labels if one not in BY_CONTROLLER]
    read_pod("spec.template", theirs.pop("template"), ours["template"], None, "trainer", paths)
    paths += [f"spec.{key}" for key, value in theirs.items()]


def read_scheduling(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    """A gang of Kubernetes' own. Of workers that wait for each other all are needed, whatever the manifest says."""
    if not theirs:
        return
    gang = theirs["schedulingPolicy"].pop("gang")
    if (least := gang.pop("minCount", None)) is not None:
        same("spec.scheduling.schedulingPolicy.gang.minCount", least, spec.workers.at_least)
        if spec.launcher != "torchrun":
            least = spec.workers.count
        gang = {"minCount": least, **gang}
    theirs["schedulingPolicy"]["gang"] = gang
    paths += missing(ours["scheduling"], theirs, "spec.scheduling")
    modes = theirs.get("disruptionMode", {})
    paths += [
        f"spec.scheduling.disruptionMode.{one}"
        for one in modes
        if one not in ours["scheduling"]["disruptionMode"]
    ]


def read_deadline(theirs: Plain, spec: RunSpec, same: Any, path: str) -> None:
    seconds = theirs.pop("activeDeadlineSeconds", None)
    if seconds is not None:  # a shorter `timeout` holds as well
        same(f"{path}.activeDeadlineSeconds", min(seconds, 3600), spec.active_deadline_seconds)


def read_pytorchjob(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    replicas = theirs.pop("pytorchReplicaSpecs")
    if replicas.get("Worker", {}).get("replicas") == 0:
        replicas.pop("Worker")
    for name, one in replicas.items():
        alone = len(replicas) == 1
        at = f"spec.pytorchReplicaSpecs.{name}"
        body = ours["pytorchReplicaSpecs"]["Worker" if alone else name]
        same(f"{at}.replicas", one.pop("replicas", None), body["replicas"])
        same(f"{at}.restartPolicy", one.pop("restartPolicy", None), spec.restart.policy)
        read_pod(f"{at}.template", one.pop("template"), body["template"], "pytorch", "pytorch", paths)
        paths += [f"{at}.{key}" for key in one]
    elastic = theirs.pop("elasticPolicy", {})
    limit = elastic.get("maxRestarts")
    policy = theirs.pop("runPolicy", {})
    given = policy.pop("backoffLimit", limit)
    same("spec.runPolicy.backoffLimit", given, spec.restart.backoff_limit)
    ranks = [theirs.pop("nprocPerNode", None), elastic.pop("nProcPerNode", None)]
    for one in ranks:
        if str(one).isdecimal() and "--nproc_per_node" not in str(replicas):
            same("spec.nprocPerNode", str(one), ours["nprocPerNode"])
    paths += missing(ours.get("elasticPolicy"), elastic, "spec.elasticPolicy")
    read_deadline(policy, spec, same, "spec.runPolicy")
    clean = policy.pop("cleanPodPolicy", None)
    same("spec.runPolicy.cleanPodPolicy", {"Running": "Unfinished"}.get(clean, clean), spec.cleanup)
    same(
        "spec.runPolicy.ttlSecondsAfterFinished",
        policy.pop("ttlSecondsAfterFinished", None),
        spec.engine_options.get("ttl_seconds"),
    )
    paths += missing(ours["runPolicy"], policy, "spec.runPolicy")
    paths += [f"spec.{key}" for key in theirs]


def read_runtime(whole: Plain, others: list[Plain], spec: RunSpec, owner: Plain, same: Any) -> None:
    """What a TrainJob leaves to its runtime is that."""
    trainer, ref = whole["spec"].get("trainer", {}), whole["spec"]["runtimeRef"]
    for one in others:
        if (one["kind"], one["metadata"].get("name")) != (
            ref.get("kind", "ClusterTrainingRuntime"),
            ref["name"],
        ):
            continue
        if "numNodes" not in trainer:
            same("runtime.numNodes", one["spec"].get("mlPolicy", {}).get("numNodes"), spec.workers.count)
        for node in [] if "image" in trainer else _nodes_of(one):
            same("runtime.image", node.get("image"), owner["spec"]["trainer"]["image"])


def _nodes_of(runtime: Plain) -> Iterator[Plain]:
    for job in runtime["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", []):
        for template in templates_in(job) if job["name"] == "node" else ():
            yield from (one for one in template["spec"]["containers"] if one.get("name") == "node")


def read_trainjob(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    theirs["runtimeRef"].pop("apiGroup", None)
    trainer = theirs.pop("trainer", {})
    for key in ("command", "args"):
        trainer.pop(key, None)
    ranks = trainer.pop("numProcPerNode", None)
    if isinstance(ranks, int):
        same("spec.trainer.numProcPerNode", ranks, spec.workers.procs)
    trainer["env"] = [one for one in trainer.get("env", []) if one["name"] not in TORCHRUN]
    for one in trainer["env"]:
        if "valueFrom" not in one:
            one.setdefault("value", "")
        elif one.get("value") == "":
            one.pop("value")
    paths += missing(ours["trainer"], trainer, "spec.trainer")
    same("spec.suspend", theirs.pop("suspend", False), False)
    read_deadline(theirs, spec, same, "spec")
    for word in ("labels", "annotations"):
        told = dict(theirs.pop(word, {}))
        paths += missing(spec.engine_options.get(word, {}), told, f"spec.{word}")
    paths += missing(ours, theirs, "spec")


def read_elasticjob(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    if theirs.get("suspend") is False:
        del theirs["suspend"]
    for name, one in theirs.pop("replicaSpecs").items():
        at, body = f"spec.replicaSpecs.{name}", ours["replicaSpecs"][name]
        one.pop("restartPolicy", None)
        template = one.pop("template")
        if name == "dlrover-master":
            assert one.pop("replicas", 1) in (0, 1)  # what of it is lost, the run begins anew
            one.pop("restartCount", None)
        if name == "worker":
            same(f"{at}.restartCount", one.pop("restartCount", None), spec.restart.backoff_limit)
            read_pod(f"{at}.template", template, body["template"], "main", "main", paths)
        else:
            template["spec"].pop("restartPolicy", None)
            main = template["spec"]["containers"][0]
            paths += added(template, body["template"], main, f"{at}.template")
            main["name"] = "main"
            words = [*main.pop("command", []), *main.pop("args", [])]
            held = body["template"]["spec"]["containers"][0]
            if name == "dlrover-master":  # its command is the run's own
                assert not words
                assert held["command"][1:3] == ["-m", "dlrover.python.master.main"]
                assert not held.get("args")
            else:
                same(f"{at}.template.spec.containers.0.command", words, held["command"])
            for key in (*BY_SERVER,):
                template.get("metadata", {}).pop(key, None)
            paths += missing(body["template"], template, f"{at}.template")
        paths += missing(body, one, at)
    paths += missing(ours, theirs, "spec")


def read_trainingjob(theirs: Plain, spec: RunSpec, ours: Plain, same: Any, paths: list[str]) -> None:
    (one,) = theirs.pop("replicaSpecs")
    assert one.pop("type", "worker") in ("worker", "Worker", "master", "Master")
    (body,) = ours["replicaSpecs"]
    torchrun = theirs.pop("torchrunConfig", {})
    elastic = theirs.pop("elastic", {})
    on = elastic.get("enabled")
    if on and elastic.get("expectedReplicas") is not None:
        same("spec.elastic.expectedReplicas", elastic["expectedReplicas"], spec.workers.count)
    elif one.get("replicas") is not None:
        same("spec.replicaSpecs.0.replicas", one["replicas"], body["replicas"])
    one.pop("replicas", None)
    if on:
        same("spec.elastic.minReplicas", elastic.get("minReplicas"), spec.workers.min)
        same("spec.elastic.maxReplicas", elastic.get("maxReplicas"), spec.workers.max)
    same("spec.replicaSpecs.0.restartPolicy", one.pop("restartPolicy", None), spec.restart.policy)
    same(
        "spec.replicaSpecs.0.scalingWeight",
        one.pop("scalingWeight", None),
        spec.engine_options.get("scaling_weight"),
    )
    read_pod("spec.replicaSpecs.0.template", one.pop("template"), body["template"], "python", "python", paths)
    policy = theirs.pop("runPolicy", {})
    same(
        "spec.torchrunConfig.maxRestarts",
        policy.get("backoffLimit", torchrun.get("maxRestarts")),
        spec.restart.backoff_limit,
    )
    same(
        "spec.torchrunConfig.rdzvBackend",
        torchrun.get("rdzvBackend"),
        spec.engine_options.get("rdzv_backend"),
    )
    same(
        "spec.torchrunConfig.extraOptions",
        torchrun.get("extraOptions"),
        spec.engine_options.get("torchrun_options"),
    )
    if not on:
        same("spec.torchrunConfig.minNodes", torchrun.get("minNodes"), spec.workers.min)
    if str(ranks := torchrun.get("procPerNode")).isdecimal():
        same("spec.torchrunConfig.procPerNode", str(ranks), str(spec.workers.procs))
    policy.pop("backoffLimit", None)
    read_deadline(policy, spec, same, "spec.runPolicy")
    same("spec.runPolicy.cleanUpPolicy", policy.pop("cleanUpPolicy", None), spec.cleanup)
    assert not theirs.pop("runMode", {})
    theirs.pop("runPolicy", None)
    paths += missing(ours, theirs, "spec")
    paths += [f"spec.runPolicy.{key}" for key in policy]


READ = {
    "Job": read_job,
    "PyTorchJob": read_pytorchjob,
    "TrainJob": read_trainjob,
    "ElasticJob": read_elasticjob,
    "PyTorchTrainingJob": read_trainingjob,
}

# -- the property ----------------------------------------------------------------------------------------------------


def named(path: str, manifest: Plain, others: list[Plain]) -> bool:
    """Whether a path is that of a field of this manifest, or of one that is lacking in one of its mappings; or one of
    what else is in the same file, as `PodGroup mine: spec.minMember`.
    """
    for one in others:
        title = f"{one['kind']} {one['metadata'].get('name')}: "
        if path.startswith(title):
            manifest, path = one, path.removeprefix(title)
    holder: Any = normal(manifest)
    rest = path
    while rest:
        if isinstance(holder, dict):
            key = max((k for k in holder if rest == k or rest.startswith(f"{k}.")), key=len, default=None)
        else:
            first = rest.partition(".")[0]
            key = (
                int(first)
                if isinstance(holder, list) and first.isdecimal() and int(first) < len(holder)
                else None
            )
        if key is None:
            return "." not in rest or path.rpartition(".")[0].endswith(rest.rpartition(".")[0])
        holder, rest = holder[key], rest[len(str(key)) + 1 :]
    return True


def check(given: Plain) -> None:
    before = copy.deepcopy(given)
    manifest, *others = given["items"] if given["kind"] == "List" else [given]
    note(json.dumps(given, indent=1))
    try:
        spec = from_manifest(given)
    except SpecError as error:
        event("refused")
        note(str(error))
        assert given == before
        unnamed = [one.path for one in error.problems if not named(one.path, manifest, others)]
        assert not unnamed, unnamed
        return
    event("taken")
    assert given == before
    items = find_engine(spec.engine).render(Job("s3://b/run", spec, 1, spec.workers.count))["items"]
    assert json.loads(json.dumps(items, allow_nan=False)) == json.loads(json.dumps(items))
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    gone = lost(manifest, others, spec, json.loads(json.dumps(items)))
    assert not gone, gone


#: A seed makes another manifest once `random_manifests` changes, so what one has found gets a test of its own.
SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, derandomize=True)
@given(seed=SEEDS, broken=st.booleans())
def test_no_field_is_lost(kind: str, seed: int, broken: bool) -> None:
    check(damaged(kind, seed) if broken else made(kind, seed))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5000, phases=[Phase.generate])  # a smaller seed makes no smaller manifest
@given(seed=SEEDS, broken=st.booleans())
def test_no_field_is_lost_long(kind: str, seed: int, broken: bool) -> None:
    check(damaged(kind, seed) if broken else made(kind, seed))
