"""Fields of a job's own object that a run takes over, declared once: what to set instead, or why that is impossible.

The reader of manifests refuses by it, and docs/reference/pods.md prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: These become fields of the run.
BECOME: Mapping[str, str] = {
    "parallelism, completions, replicas, numNodes": "`workers.count`; the run changes them as it scales",
    "backoffLimit, maxRestarts, restartCount": "`restart.backoff_limit`",
    "activeDeadlineSeconds": "`active_deadline_seconds`",
    "ttlSecondsAfterFinished": "`engine_options.ttl_seconds`",
    "cleanPodPolicy, cleanUpPolicy": "`cleanup`",
    "terminationGracePeriodSeconds of the pod": "`health.grace_seconds`, and 5 s more",
    "completionMode": "always Indexed",
    "suspend": "refused unless false (or the engine's own word for it): a run begins when it is submitted",
}

_DECIDES = "nothing: the run decides what follows a failure (restart)"
_PATCHES = "nothing: say it of the run's own pods, as engine_options.pod_template"
_SELECTS = "nothing: each attempt's job selects its own pods"

#: These are refused, each with what to set instead.
REFUSED: Mapping[str, str] = {
    "backoffLimitPerIndex": _DECIDES,
    "maxFailedIndexes": _DECIDES,
    "podFailurePolicy": "nothing: the run decides what follows a failure (restart.policy, restart.exit_codes)",
    "failurePolicy": _DECIDES,
    "successPolicy": "nothing: a run has succeeded when all its workers have, or its script says so",
    "podReplacementPolicy": "nothing: the run replaces what it loses",
    "selector": _SELECTS,
    "manualSelector": _SELECTS,
    "runtimePatches": _PATCHES,
    "podTemplateOverrides": _PATCHES,
    "podSpecOverrides": _PATCHES,
    "managedBy": "nothing: the cluster's own controller makes the pods",
}
