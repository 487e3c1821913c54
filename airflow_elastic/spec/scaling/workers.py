"""How many workers a run has, and what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_elastic.spec.validation import Checks, finite_positive, procs_count, standby_count, worker_count


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers (nodes or pods, each with one agent) a run has, and the resources of each.

    Attributes:
        count: workers to start with.
        min: fewest workers the run may continue with. Default: `count`.
        max: most workers a scale step may ask for. Default: `count`.
        procs: ranks (training processes) of each worker.
        node_unit: the number of workers is always a multiple of this.
        resources: what each worker asks the engine for, e.g. `{"cpu": "4", "memory": "8Gi"}`.
        gather_seconds: for a cluster that has room for at least `min` workers but not for all. After so long, training
            begins with the workers that are there; the others join later. Default: 30.
        standby: further workers that have started, but do not train. One of them takes the place of a lost worker, or
            joins in a scale step, at once; then another is started. With the engines `local` and `job`. Default: 0.
    """

    count: int = 1
    min: int | None = None
    max: int | None = None
    procs: int = 1
    node_unit: int = 1
    resources: Mapping[str, str] = field(default_factory=dict)
    gather_seconds: float = 30.0
    standby: int = 0

    def __post_init__(self) -> None:
        with Checks() as check:
            check("gather_seconds", self.gather_seconds, finite_positive)
            check("count", self.count, worker_count)
            check("procs", self.procs, procs_count)
            check("standby", self.standby, standby_count)
            check("node_unit", self.node_unit, worker_count)
            for name in ("min", "max"):
                if getattr(self, name) is not None:
                    check(name, getattr(self, name), worker_count)
            if check.passed:
                if self.min is not None and self.max is not None and self.min > self.max:
                    # `count` is not in this rule: it may be left out.
                    most = f"at most workers.max, which is {self.max}"
                    check.that(False, "min", self.min, most, across=True)
                else:
                    least, most = (
                        f"at {bound} workers.count, which is {self.count}" for bound in ("least", "most")
                    )
                    check.that(self.at_least <= self.count, "min", self.min, most, across=True)
                    check.that(self.at_most >= self.count, "max", self.max, least, across=True)
                for name in ("count", "min", "max"):
                    value = getattr(self, name)
                    whole = value is None or value % self.node_unit == 0
                    allowed = f"a multiple of workers.node_unit, {self.node_unit}"
                    check.that(whole, name, value, allowed, across=True)

    @property
    def at_least(self) -> int:
        """The fewest workers: `min`, or `count` where it is unset."""
        return self.count if self.min is None else self.min

    @property
    def at_most(self) -> int:
        """The most workers: `max`, or `count` where it is unset."""
        return self.count if self.max is None else self.max

    def allowed(self) -> str:
        """The numbers of workers that a scale step may ask for, in words."""
        multiple = f", a multiple of {self.node_unit}" if self.node_unit > 1 else ""
        return f"an integer from {self.at_least} to {self.at_most}{multiple}"

    def nearest(self, count: int) -> int:
        """The allowed number of workers next to this one; smaller numbers are tried first."""
        within = min(max(count, self.at_least), self.at_most)
        return max(within - within % self.node_unit, self.at_least)

    def permits(self, count: int) -> bool:
        """Whether the run may have this number of workers."""
        return self.at_least <= count <= self.at_most and count % self.node_unit == 0
