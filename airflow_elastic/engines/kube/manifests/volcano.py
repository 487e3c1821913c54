"""A gang of Volcano's in a manifest: annotations tell it, the name of the scheduler, and what its operator is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_elastic.engines.kube.manifests.making import Run
from airflow_elastic.engines.kube.manifests.parts import Part
from airflow_elastic.engines.kube.quantities import times

_SCHEDULER = "volcano"
_QUEUE = "scheduling.volcano.sh/queue-name"
_LEAST = "scheduling.volcano.sh/group-min-member"
_RESOURCES = "scheduling.volcano.sh/group-min-resources"
_GROUPS = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")

#: Where a manifest may say something of a gang, in the words of a run.
_ANNOTATIONS = ("annotations", "pod_template.metadata.annotations")
_POLICY = "run_policy.schedulingPolicy"

#: Engines whose workers can be a gang of Volcano's, and whose manifests say it so. A TrainJob's runtime says it.
_ENGINES = ("job", "pytorchjob")


def take_gang(part: Part, run: Run) -> None:
    """What makes the workers a gang of Volcano's becomes `queueing: volcano`, `queue`, and the fewest workers.

    Args:
        part: the whole manifest, for what cannot be kept.
        run: what was taken out of it.
    """
    options = run.options
    annotated = any(
        key in _at(options, where) for where in _ANNOTATIONS for key in (_QUEUE, _LEAST, *_GROUPS)
    )
    if run.plain["engine"] not in _ENGINES or not (annotated or options.get("scheduler") == _SCHEDULER):
        return
    if "queue" in options:
        part.refuse(
            run.whence["engine_options.queue"], options["queue"], "nothing beside a gang of Volcano's"
        )
    run.options["queueing"] = "volcano"
    if options.get("scheduler") == _SCHEDULER:
        del options["scheduler"]
    for where in _ANNOTATIONS:
        for key in _GROUPS:
            if (name := _pop(options, where, key)) is not None:
                why = "nothing: each attempt has a PodGroup of its own, of the fewest workers of the run"
                part.refuse(_path(run, where, key), name, why)
    _say(part, run, "engine_options.queue", _QUEUE, "queue")
    _say(part, run, "engine_options.priority_class", None, "priorityClass")
    _take_least(part, run)
    _take_resources(part, run)


def _take_least(part: Part, run: Run) -> None:
    """`minMember`: the fewest workers, and so no other number than those of an elastic policy."""
    count, fewest = run.workers.get("count", 1), run.workers.get("min")
    for path, given in _given(run, _LEAST, "minAvailable"):
        least = int(given) if str(given).isdecimal() else 0
        if not 1 <= least <= count:
            part.refuse(path, given, f"an integer from 1 to {count}, the number of workers")
        elif fewest is not None and least != fewest:
            part.refuse(path, given, f"{fewest}, the fewest workers of the run: its gang needs these")
        elif fewest is None and least < count:
            run.say("workers.min", least, path)


def _take_resources(part: Part, run: Run) -> None:
    """`minResources`: what the fewest workers ask for, which is what a gang of ours says."""
    fewest = run.workers.get("min", run.workers.get("count", 1))
    ours = {name: times(fewest, amount) for name, amount in run.workers.get("resources", {}).items()}
    for path, given in _given(run, _RESOURCES, "minResources"):
        told = {name: str(amount) for name, amount in given.items()} if isinstance(given, Mapping) else given
        if told != ours:
            part.refuse(path, given, f"{ours or 'nothing'}: what the fewest workers ask for")


def _say(part: Part, run: Run, field: str, annotation: str | None, word: str) -> None:
    """One word of a run, which may stand in several places, alike in all."""
    known: tuple[str, Any] | None = None
    for path, value in _given(run, annotation, word):
        if known is not None and value != known[1]:
            part.refuse(path, value, f"{known[1]}, as at {known[0]}")
        known = known or (path, value)
    if known is not None:
        run.say(field, known[1], known[0])


def _given(run: Run, annotation: str | None, word: str) -> Iterator[tuple[str, Any]]:
    """Takes what annotations and the operator's policy say, each with its path in the manifest."""
    for where, key in (*((where, annotation) for where in _ANNOTATIONS), (_POLICY, word)):
        if key is not None and (value := _pop(run.options, where, key)) is not None:
            yield _path(run, where, key), value


def _at(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: Any = options
    for key in where.split("."):
        found = found.get(key) or {}
    return dict(found)


def _pop(options: dict[str, Any], where: str, key: str) -> Any:
    """Takes a value out of the options, and what is empty without it."""
    head, _, tail = where.partition(".")
    inner = options.get(head)
    if not isinstance(inner, dict):
        return None
    value = _pop(inner, tail, key) if tail else inner.pop(key, None)
    if not inner:
        del options[head]
    return value


def _path(run: Run, where: str, key: str) -> str:
    """Where the manifest says it."""
    fields = [field for field in run.whence if f"engine_options.{where}.".startswith(f"{field}.")]
    longest = max(fields, key=len)
    return f"{run.whence[longest]}{f'engine_options.{where}'.removeprefix(longest)}.{key}"
