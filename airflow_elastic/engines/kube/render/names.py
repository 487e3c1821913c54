"""Names on a cluster that belong to the engines."""

from __future__ import annotations

#: Prefix of labels and annotations: nobody else writes any with it.
PREFIX = "airflow-elastic/"

#: Finds a job and its pods.
JOB_LABEL = f"{PREFIX}job"
ATTEMPT_LABEL = f"{PREFIX}attempt"
URI_ANNOTATION = f"{PREFIX}run-uri"
DIGEST_ANNOTATION = f"{PREFIX}digest"

#: For people and their tools; nothing here is found by it, so a user's own value may replace it.
MANAGED_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "airflow-elastic"

#: Which container `kubectl logs` shows.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

#: Kueue finds a queue by this label. Users set the option instead: otherwise we would not know that the job is queued.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_LABELS = {
    QUEUE_LABEL: "queue",
    "kueue.x-k8s.io/priority-class": "queue_priority",
}

#: Names the gang of a pod.
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"

#: Prefix of volumes in a pod.
VOLUME_PREFIX = "airflow-elastic-"
SHARED_MEMORY = f"{VOLUME_PREFIX}shared-memory"
SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108 - the pod's own

#: The module that a worker's container starts: our agent.
AGENT = "airflow_elastic.runtime.pod"

#: Prefix of the variables for agents and ranks; and the variables that engines set.
VARIABLE_PREFIX = "AIRFLOW_ELASTIC_"
VARIABLES = tuple(
    f"{VARIABLE_PREFIX}{name}"
    for name in (
        *("RUN_URI", "ATTEMPT", "JOB", "INDEX", "POD", "POD_UID", "POD_IP", "MACHINE"),
        *("FOLLOWS", "WORKERS_BEFORE", "TERMINATION"),
    )
)

#: The file for the agent's report about its worker's end, unless the container names another one.
TERMINATION_LOG = "/dev/termination-log"

#: The seconds beyond its grace before a worker is killed: it has to notice, and to record how it ended.
MARGIN_SECONDS = 5

#: What preemption takes from a gang of Kubernetes.
DISRUPTION_MODES = ("all", "single")
