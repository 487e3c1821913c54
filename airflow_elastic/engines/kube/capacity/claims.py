"""Who waits for room that a run's workers have, and how many of them would have to leave. Pure.

Workers leave in the order in which a job loses them: the one with the highest number first. So room on the node of a
worker with a low number costs many workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.capacity.pods import Amounts, copies, left, plus
from airflow_elastic.engines.kube.capacity.removal import mark_for
from airflow_elastic.engines.kube.capacity.view import View, since
from airflow_elastic.spec.scaling.observation import Claim

Object = Mapping[str, Any]

#: Of the claim on a node that is going to be removed: the priority of what a cluster cannot do without.
REMOVAL_PRIORITY = 2_000_000_000

#: So many waiting pods and groups are looked at.
MOST_WAITING = 50


class Worker(NamedTuple):
    """A worker and its pod."""

    number: int
    pod: Object


def claims(view: View, own: Sequence[Worker], gone: Sequence[Worker] = ()) -> tuple[Claim, ...]:
    """The claims on the nodes of these workers: of pods with a higher priority, and by the end of nodes.

    Args:
        view: what the cluster has.
        own: its workers.
        gone: those that are leaving in a scale step, and still have their room. It is not claimed once more.
    """
    return (*_of_nodes(view, own), *_of_pods(view, own, _free_soon(view, gone)))


def _free_soon(view: View, gone: Sequence[Worker]) -> dict[str, Amounts]:
    """What is free on each node that a pod is about to leave, with the room of that pod."""
    found: dict[str, Amounts] = {}
    for pod in (*(one for one in view.placed if one["metadata"]["ends"]), *(worker.pod for worker in gone)):
        name = pod["spec"]["nodeName"]
        found[name] = plus(found.get(name) or view.free.get(name, {}), pod["requests"])
    return found


def _of_nodes(view: View, own: Sequence[Worker]) -> Iterator[Claim]:
    found: Counter[tuple[str, str]] = Counter()
    for worker in own:
        node = view.nodes.get(worker.pod["spec"]["nodeName"])
        mark = None if node is None else mark_for(node, worker.pod["spec"])
        if node is not None and mark is not None:
            found[node["metadata"]["name"], mark] += 1
    for (name, mark), count in sorted(found.items()):
        began = view.since.get((name, mark), view.at)
        yield Claim(f"node {name} ({mark})", count, REMOVAL_PRIORITY, max(0.0, view.at - began))


def _of_pods(view: View, own: Sequence[Worker], free: dict[str, Amounts]) -> Iterator[Claim]:
    """In the order of the scheduler: what an earlier claim frees is not there for a later one.

    `free` has the nodes where something else is free than in the view.
    """
    if not own:
        return
    priority = max(worker.pod["spec"]["priority"] for worker in own)
    leaving = sorted(own, key=lambda worker: -worker.number)
    for group in _groups(view.waiting, priority)[:MOST_WAITING]:
        found = _leave_for(group, view, free, leaving)
        if found is None:
            continue
        gone, following = found
        if gone or _leave_for(group, view, {}, ()) is None:  # else they wait for something other than room
            free = following
        if gone == 0:
            continue
        leaving = leaving[gone:]
        waited = max(0.0, view.at - min(map(since, group)))
        yield Claim(_name(group), gone, group[0]["spec"]["priority"], waited)


def _leave_for(
    group: Sequence[Object], view: View, free: Mapping[str, Amounts], leaving: Sequence[Worker]
) -> tuple[int, dict[str, Amounts]] | None:
    """How many of these workers must leave until there is room for all of a group, and what is free then.

    None: there is no room for it even without them all. `free` has the nodes where something else is free than in the
    view.
    """
    trial, gone = dict(free), 0
    for pod in group:
        each, usable = pod["requests"], view.usable(pod["spec"])
        fits = (name for name in view.fitting(pod["spec"], each) if name not in trial)
        changed = (name for name in sorted(trial) if name in usable and copies(trial[name], each))
        place = next(fits, None) or next(changed, None)
        while place is None:
            if gone == len(leaving):
                return None
            node = leaving[gone].pod["spec"]["nodeName"]
            trial[node] = plus(trial.get(node) or view.free.get(node, {}), leaving[gone].pod["requests"])
            gone += 1
            if node in usable and copies(trial[node], each):
                place = node
        trial[place] = left(trial.get(place) or view.free[place], [each])
    return gone, trial


def _groups(waiting: Sequence[Object], priority: int) -> list[list[Object]]:
    """Waiting pods with a higher priority; those of a gang together."""
    found: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in waiting:
        if pod["spec"]["priority"] > priority:
            metadata = pod["metadata"]
            gang = pod["spec"]["gang"]
            found[metadata["namespace"], f"gang {gang}" if gang else f"pod {metadata['name']}"].append(pod)
    return sorted(found.values(), key=lambda group: (-group[0]["spec"]["priority"], min(map(since, group))))


def _name(group: Sequence[Object]) -> str:
    first = group[0]
    namespace, gang = first["metadata"]["namespace"], first["spec"]["gang"]
    if gang:
        return f"gang {namespace}/{gang} of {len(group)}"
    return f"pod {namespace}/{first['metadata']['name']}"
