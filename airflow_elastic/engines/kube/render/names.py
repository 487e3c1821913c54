"""Names on a cluster that are the engines' own."""

from __future__ import annotations

#: Of labels and annotations: nobody else writes any with it.
PREFIX = "airflow-elastic/"

#: A job and its pods are found by it.
JOB_LABEL = f"{PREFIX}job"
ATTEMPT_LABEL = f"{PREFIX}attempt"
URI_ANNOTATION = f"{PREFIX}run-uri"
DIGEST_ANNOTATION = f"{PREFIX}digest"

#: Written for people and their tools; nothing here is found by it, so that a user's own value may stand there.
MANAGED_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "airflow-elastic"

#: Which container `kubectl logs` shows.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

#: What Kueue finds a queue by, and the option that says it: as a label alone we would not know that the job is queued.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_LABELS = {
    QUEUE_LABEL: "queue",
    "kueue.x-k8s.io/priority-class": "queue_priority",
}

#: Of the gang that a pod belongs to.
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"

#: Of volumes in a pod.
VOLUME_PREFIX = "airflow-elastic-"
SHARED_MEMORY = f"{VOLUME_PREFIX}shared-memory"
SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108 - the pod's own

#: What a worker's container starts: our agent.
AGENT = "airflow_elastic.runtime.pod"

#: Of variables that agents and ranks are told by; and those that engines set.
VARIABLE_PREFIX = "AIRFLOW_ELASTIC_"
VARIABLES = tuple(
    f"{VARIABLE_PREFIX}{name}"
    for name in (
        *("RUN_URI", "ATTEMPT", "JOB", "INDEX", "POD", "POD_UID", "POD_IP", "MACHINE"),
        *("FOLLOWS", "WORKERS_BEFORE", "TERMINATION"),
    )
)

#: Where the agent says how its worker ended, unless the container names another place.
TERMINATION_LOG = "/dev/termination-log"

#: What a worker gets beyond its grace before it is killed: it has to notice, and to write down how it ended.
MARGIN_SECONDS = 5

#: What preemption takes of a gang of Kubernetes' own.
DISRUPTION_MODES = ("all", "single")
