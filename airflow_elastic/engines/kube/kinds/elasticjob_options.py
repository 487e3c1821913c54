"""`engine_options` of ElasticJobs: everything that DLRover's own object can express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.spec.validation import Checks, choice, int32, worker_count

STRATEGIES = ("AllreduceStrategy", "ParameterServerStrategy", "CustomStrategy", "Local")
MODES = ("manual", "single-job", "cluster")

#: Options of the master's command. Each is an annotation of that name, where the operator writes the command.
MASTER_OPTIONS = (
    *("pending_timeout", "pending_fail_strategy", "service_type", "pre_check_ops", "pre_check_bypass"),
    *("training_elastic_mode", "enable_dashboard", "dashboard_port"),
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Processes beside the workers, for ParameterServerStrategy. Only DLRover manages them: they have no agent.

    Attributes:
        replicas: how many.
        command: the command of their container.
        image: Default: the workers'.
        resources: requests of each.
        env: plain variables.
        restart_count: how often DLRover may replace each.
        auto_scale: whether DLRover may change their number and size.
        restart_timeout: seconds until one that does not start is replaced.
        priority: high, low, or the part of them that is high, e.g. 0.5.
        pod_template: merged into the pod last.
    """

    replicas: int
    command: tuple[str, ...]
    image: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    restart_count: int = 0
    auto_scale: bool = False
    restart_timeout: int | None = None
    priority: str | None = None
    pod_template: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with Checks() as check:
            check("replicas", self.replicas, worker_count)
            check.that(bool(self.command), "command", self.command, "a program and its arguments")
            check("restart_count", self.restart_count, int32)
            _check_restart_timeout(check, self.restart_timeout)
            _check_priority(check, self.priority)


@dataclass(frozen=True, slots=True)
class Master:
    """The pod of the job master. Its service account needs rights on pods, services, elasticjobs and scaleplans.

    Attributes:
        image: with dlrover and kubernetes<37. Default: the workers'.
        python: the interpreter in it. Default: the workers'.
        resources: its requests.
        service_account: Default: the namespace's.
        options: of its command. They are pending_timeout, pending_fail_strategy, service_type, pre_check_ops,
            `pre_check_bypass`, `training_elastic_mode`, `enable_dashboard` and `dashboard_port`.
        pod_template: merged into the pod last.
    """

    image: str | None = None
    python: str | None = None
    resources: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "2Gi"}
    )
    service_account: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    pod_template: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with Checks() as check:
            for name in self.options:
                check(f"options.{name}", name, choice(MASTER_OPTIONS))


@dataclass(frozen=True, slots=True)
class ElasticJobOptions(KubeOptions):
    """Options for workers as pods of an ElasticJob.

    Attributes:
        distribution_strategy: AllreduceStrategy, ParameterServerStrategy, CustomStrategy or Local.
        optimize_mode: manual (the run decides), single-job, or cluster (Brain decides).
        brain_service: address of Brain. Without one, DLRover's master accepts `cluster` all the same, and says so in
            its log.
        resource_limits: cpu, memory and gpu of all pods of the job together, for auto-scaling.
        envs: in the form of ElasticJobs.
        suspend: create the job suspended.
        enable_dynamic_sharding: hand out data in shards; if the installed ElasticJob has the field.
        enable_elastic_scheduling: if the installed ElasticJob has the field.
        auto_scale: whether DLRover may change the workers.
        restart_timeout: seconds until a worker that does not start is replaced.
        priority: of the workers: high, low, or the part of them that is high, e.g. 0.5.
        replicas: further kinds of processes, by name: ps, chief, evaluator.
        master: the job master.
    """

    distribution_strategy: str = "AllreduceStrategy"
    optimize_mode: str = "manual"
    brain_service: str | None = None
    resource_limits: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, Any] = field(default_factory=dict)
    suspend: bool = False
    enable_dynamic_sharding: bool | None = None
    enable_elastic_scheduling: bool | None = None
    auto_scale: bool = False
    restart_timeout: int | None = None
    priority: str | None = None
    replicas: Mapping[str, Replicas] = field(default_factory=dict)
    master: Master = field(default_factory=Master)

    def __post_init__(self) -> None:
        KubeOptions.__post_init__(self)
        with Checks() as check:
            check("distribution_strategy", self.distribution_strategy, choice(STRATEGIES))
            check("optimize_mode", self.optimize_mode, choice(MODES))
            _check_restart_timeout(check, self.restart_timeout)
            _check_priority(check, self.priority)
            for name in self.replicas:
                check(f"replicas.{name}", name, choice(("ps", "chief", "evaluator")))
            of_ps = self.distribution_strategy == "ParameterServerStrategy"
            none = "none, unless distribution_strategy is ParameterServerStrategy"
            check.that(of_ps or not self.replicas, "replicas", sorted(self.replicas), none)
            check.that(not of_ps or "ps" in self.replicas, "replicas", sorted(self.replicas), "ps, at least")


def _check_restart_timeout(check: Checks, seconds: int | None) -> None:
    if seconds is not None:
        check("restart_timeout", seconds, int32)


def _check_priority(check: Checks, priority: str | None) -> None:
    try:
        good = priority in (None, "high", "low") or 0 < float(priority or 0) <= 1
    except ValueError:
        good = False
    check.that(good, "priority", priority, "high, low, or a part of 1 such as 0.5")
