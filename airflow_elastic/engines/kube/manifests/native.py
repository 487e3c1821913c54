"""A gang of Kubernetes in a manifest: `spec.scheduling` of a Job (1.37)."""

from __future__ import annotations

from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.engines.kube.render.names import DISRUPTION_MODES
from airflow_elastic.spec.errors import ABSENT


def take_scheduling(part: Section, run: RunBuilder) -> None:
    """A Job's gang becomes `queueing: native`, the fewest workers, `topology` and `disruption_mode`.

    Args:
        part: the `spec` of the Job.
        run: the specification. It already has its number of workers, and the settings of the command.
    """
    if not part.data.get("scheduling"):
        part.drop("scheduling")
        return
    scheduling = part.part("scheduling")
    policy = scheduling.part("schedulingPolicy")
    if "gang" in policy.data:
        run.set_field("engine_options.queueing", "native", scheduling.path)
        _take_least(policy.part("gang"), run)
    elif "basic" in policy.data:
        why = (
            "a gang in its place, or no scheduling: the workers of a run are a gang, or are placed one by one"
        )
        policy.refuse("basic", policy.take("basic"), why)
    else:
        policy.refuse(
            "gang",
            ABSENT,
            "this field is required: give `gang: {}` or `gang: {minCount: N}`, or remove `scheduling`",
        )
    constraints = scheduling.part("schedulingConstraints")
    topology = constraints.take("topology", [])
    if len(topology) > 1:
        constraints.refuse(
            "topology", len(topology), "one entry: all workers are put where one label is equal"
        )
    for i, one in enumerate(topology[:1]):
        run.option("topology", constraints.of(one, f"topology.{i}"), "key")
    modes = scheduling.take("disruptionMode", {})
    if len(modes) > 1:
        scheduling.refuse("disruptionMode", ", ".join(modes), f"one of {', '.join(DISRUPTION_MODES)}")
    elif modes:
        (mode,) = modes
        run.set_field("engine_options.disruption_mode", mode, scheduling.at("disruptionMode"))
        scheduling.of(modes[mode], f"disruptionMode.{mode}")


def _take_least(gang: Section, run: RunBuilder) -> None:
    """`minCount` is the fewest workers, so it must agree with those of the command."""
    count, fewest, key = run.workers["count"], run.workers.get("min"), "minCount"
    least = gang.take(key)
    if least is None:
        return
    if not 1 <= least <= count:
        gang.refuse(key, least, f"an integer from 1 to {count}, the number of workers")
    elif fewest is not None and least != fewest:
        gang.refuse(key, least, f"{fewest}, the fewest workers of the run: its gang needs these")
    elif least < count:
        run.set_field("workers.min", least, gang.at(key))
