"""A gang of Volcano in a manifest: annotations, the scheduler's name, the operator's policy, and a PodGroup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.pods import BY_SERVER, LAST_APPLIED
from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder, whole
from airflow_elastic.engines.kube.manifests.section import Section, name_of
from airflow_elastic.engines.kube.manifests.tables import PODGROUP
from airflow_elastic.engines.quantities import is_quantity, number_of, times, written
from airflow_elastic.spec.errors import Problem

_SCHEDULER = "volcano"
_QUEUE = "scheduling.volcano.sh/queue-name"
_LEAST = "scheduling.volcano.sh/group-min-member"
_RESOURCES = "scheduling.volcano.sh/group-min-resources"
_GROUPS = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")

#: Where a manifest may have settings of a gang, by the fields of a run.
_ANNOTATIONS = ("annotations", "pod_template.metadata.annotations")
_POLICY = "run_policy.schedulingPolicy"

#: Kinds whose workers can be a gang of Volcano, by their engines; their manifests say so. For a TrainJob its runtime
#: says it.
_KINDS = {"job": "Job", "pytorchjob": "PyTorchJob"}


Objects = Sequence[Mapping[str, Any]]

#: The names of a setting as an annotation, in the operator's policy, and in a PodGroup.
_Words = tuple[str | None, str, str]


def take_gang(part: Section, run: RunBuilder, others: Objects = ()) -> None:
    """A gang of Volcano becomes `queueing: volcano`, `queue`, and the fewest workers.

    Args:
        part: the whole manifest, for parts that cannot be kept.
        run: the specification so far.
        others: the other objects of the file, with the PodGroup if the manifest names one.
    """
    options = run.options
    annotated = any(
        key in _at(options, where) for where in _ANNOTATIONS for key in (_QUEUE, _LEAST, *_GROUPS)
    )
    if run.plain["engine"] not in _KINDS or not (annotated or options.get("scheduler") == _SCHEDULER):
        return
    if "queue" in options:
        part.refuse(
            run.source["engine_options.queue"], options["queue"], "nothing beside a gang of Volcano's"
        )
    if "queueing" in options:
        part.refuse(run.source["engine_options.queueing"], "a gang", "nothing beside a gang of Volcano's")
    run.options["queueing"] = "volcano"
    if options.get("scheduler") == _SCHEDULER:
        del options["scheduler"]
    groups = _take_groups(part, run, others)
    _say(part, run, groups, "engine_options.queue", (_QUEUE, "queue", "queue"))
    _say(part, run, groups, "engine_options.priority_class", (None, "priorityClass", "priorityClassName"))
    _take_least(part, run, groups)
    _take_resources(part, run, groups)


def takes_group(body: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Whether the gang of a manifest is taken from this PodGroup, which is beside it."""
    return body.get("kind") in _KINDS.values() and name_of(group) in _named_groups(body)


def _named_groups(found: Any) -> set[str]:
    """The names of the PodGroups of a manifest's pods."""
    if isinstance(found, Mapping):
        notes = found.get("annotations")
        here = [notes.get(key) for key in _GROUPS] if isinstance(notes, Mapping) else []
        return {str(one) for one in here if one}.union(*map(_named_groups, found.values()))
    return set().union(*map(_named_groups, found)) if isinstance(found, list | tuple) else set()


def is_group(found: Mapping[str, Any]) -> bool:
    """Whether an object is a PodGroup of Volcano."""
    group = str(found.get("apiVersion", "")).partition("/")[0]
    return (group, found.get("kind")) == ("scheduling.volcano.sh", "PodGroup")


def _take_groups(part: Section, run: RunBuilder, others: Objects) -> list[Section]:
    """The PodGroups that the manifest names."""
    known = {name_of(one): one for one in others if is_group(one)}
    groups: dict[str, Section] = {}
    for where in _ANNOTATIONS:
        for key in _GROUPS:
            if (name := _pop(run.options, where, key)) is None:
                continue
            if name not in known:
                why = (
                    "nothing: each attempt has its own PodGroup, with the fewest workers of the run. Or add the "
                    f"PodGroup {name} to the same file, behind a line ---, and it is taken from there"
                )
                part.refuse(_path(run, where, key), name, why)
            elif name not in groups:
                groups[name] = _group(part, name, known[name])
    return [*groups.values()]


def _group(part: Section, name: str, found: Mapping[str, Any]) -> Section:
    """The `spec` of a PodGroup. The run writes its own metadata: only the name is needed."""
    problems: list[Problem] = []
    body = PODGROUP(found, "", problems)
    title = f"PodGroup {name}"
    part.problems += (problem.at(f"{title}: {problem.path}") for problem in problems)
    if problems:
        return part.of({}, title)
    metadata = part.of(body.get("metadata", {}), f"{title}: metadata")
    metadata.drop(*BY_SERVER, "name", "namespace")
    for word in ("labels", "annotations"):
        told = {key: value for key, value in metadata.take(word, {}).items() if key != LAST_APPLIED}
        if told:
            why = "nothing: say it of the job, whose own PodGroup has its labels and annotations"
            metadata.refuse(word, told, why)
    return part.of(body.get("spec", {}), f"{title}: spec")


def _take_least(part: Section, run: RunBuilder, groups: Sequence[Section]) -> None:
    """`minMember` is the fewest workers, so it must agree with an elastic policy."""
    count, fewest = run.workers.get("count", 1), run.workers.get("min")
    known: tuple[str, int] | None = None
    for path, given in _given(run, groups, (_LEAST, "minAvailable", "minMember")):
        least = whole(str(given)) or 0
        if not 1 <= least <= count:
            part.refuse(path, given, f"an integer from 1 to {count}, the number of workers")
        elif known is not None and least != known[1]:
            part.refuse(path, given, f"{known[1]}, as at {known[0]}")
        elif fewest is not None and least != fewest:
            part.refuse(path, given, f"{fewest}, the fewest workers of the run: its gang needs these")
        else:
            known = known or (path, least)
            if fewest is None and least < count:
                run.set_field("workers.min", least, path)


def _take_resources(part: Section, run: RunBuilder, groups: Sequence[Section]) -> None:
    """`minResources` must be the requests of the fewest workers, as in the run's own PodGroup."""
    fewest = run.workers.get("min", run.workers.get("count", 1))
    ours = {name: times(fewest, amount) for name, amount in run.workers.get("resources", {}).items()}
    for path, given in _given(run, groups, (_RESOURCES, "minResources", "minResources")):
        if not isinstance(given, Mapping) or _amounts(given) != _amounts(ours):
            allowed = ours or "nothing, and each of our PodGroups says"
            part.refuse(path, given, f"{allowed}: what the fewest workers ask for, or leave it out")


def _amounts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts that can be compared: `1000m` is `1`. Other values stay as they are."""
    texts = {name: written(amount) for name, amount in given.items()}
    return {name: number_of(text) if is_quantity(text) else text for name, text in texts.items()}


def _say(part: Section, run: RunBuilder, groups: Sequence[Section], field: str, words: _Words) -> None:
    """One field of a run, which may be in several places with the same value."""
    known: tuple[str, Any] | None = None
    for path, value in _given(run, groups, words):
        if known is not None and value != known[1]:
            part.refuse(path, value, f"{known[1]}, as at {known[0]}")
        known = known or (path, value)
    if known is not None:
        run.set_field(field, known[1], known[0])


def _given(run: RunBuilder, groups: Sequence[Section], words: _Words) -> Iterator[tuple[str, Any]]:
    """Take the values out of annotations, the operator's policy and PodGroups, each with its path in the manifest."""
    annotation, in_policy, in_group = words
    for where, key in (*((where, annotation) for where in _ANNOTATIONS), (_POLICY, in_policy)):
        if key is not None and (value := _pop(run.options, where, key)) is not None:
            yield _path(run, where, key), value
    for group in groups:
        if (value := group.take(in_group)) is not None:
            yield group.at(in_group), value


def _at(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: Any = options
    for key in where.split("."):
        found = found.get(key) or {}
    return dict(found)


def _pop(options: dict[str, Any], where: str, key: str) -> Any:
    """Take a value out of the options, and remove parts that are then empty."""
    head, _, tail = where.partition(".")
    inner = options.get(head)
    if not isinstance(inner, dict):
        return None
    value = _pop(inner, tail, key) if tail else inner.pop(key, None)
    if not inner:
        del options[head]
    return value


def _path(run: RunBuilder, where: str, key: str) -> str:
    """The path of the value in the manifest."""
    fields = [field for field in run.source if f"engine_options.{where}.".startswith(f"{field}.")]
    longest = max(fields, key=len)
    return f"{run.source[longest]}{f'engine_options.{where}'.removeprefix(longest)}.{key}"
