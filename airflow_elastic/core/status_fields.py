"""What each field of the status document means: docs/reference/status.md prints these tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """What a field holds. Links in `meaning` begin in docs/reference."""

    type: str
    meaning: str


#: Of the document; several names with one meaning are one entry.
DOCUMENT: Mapping[str, Field] = {
    "version": Field(
        "integer",
        "the form of this document",
    ),
    "at": Field(
        "number",
        "when it was made",
    ),
    "run.uri, run.name, run.engine, run.launcher": Field(
        "text",
        "what the run is called, and where it runs",
    ),
    "state": Field(
        "text",
        "`submitting`, `running`, `ending`, `pausing`; while workers wait and no rank has started yet "
        "`queued`, `waiting for capacity`, `pulling`, `starting`; after the end `succeeded`, `failed`, "
        "`stopped`. A run that trains while workers of a scale step wait is `running`",
    ),
    "outcome": Field(
        "text or null",
        "`succeeded`, `failed` or `stopped`; null while the run goes on",
    ),
    "reason": Field(
        "text or null",
        "why it ended, in a sentence",
    ),
    "origin": Field(
        "mapping or null",
        "what the run has started from: `source` as it was given; `run`, `step`, `promotion` and `file` as far as they "
        "are known; null: from scratch",
    ),
    "created_at": Field(
        "number",
        "when the run began",
    ),
    "ended_at": Field(
        "number or null",
        "when it ended",
    ),
    "owner": Field(
        "text or null",
        "who may stop it: the id of an Airflow task instance, or a shell",
    ),
    "workers": Field(
        "integer",
        "workers of the current attempt",
    ),
    "target_workers": Field(
        "integer",
        "workers wanted",
    ),
    "waiting": Field(
        "mapping or null",
        "what workers wait for; see below. Null: no worker waits, the engine does not say (`local` never "
        "does), or no controller has asked",
    ),
    "restoring": Field(
        "mapping or null",
        "while ranks read their checkpoint: `bytes` read so far, and `of_bytes`",
    ),
    "starting": Field(
        "mapping or null",
        "while started ranks have made no step. `since`: when they started, or last read a part of the "
        "checkpoint. `limit_seconds`: how long they may take. `longest_seconds`: the longest start "
        "before, if any",
    ),
    "pausing": Field(
        "mapping or null",
        "during the pause before an attempt: `since` and `until`",
    ),
    "world_size": Field(
        "integer",
        "ranks at work, or planned",
    ),
    "step": Field(
        "integer",
        "the newest step known: reported by all ranks, or in a checkpoint",
    ),
    "total_steps": Field(
        "integer or null",
        "the last step of the training, if the script says so",
    ),
    "epoch": Field(
        "integer",
        "epoch of rank 0, from 0, in its phase. Before a restore it is that of the attempt before",
    ),
    "phases": Field(
        "list",
        "the [phases](../how-to/train-several-models.md) so far, also in progress documents. Each has `name`, `steps`, "
        "`complete`, `sealed` and `results`. `from_step`: steps of the run before it. `sealed`: its end is in the "
        "checkpoint of its last step. Empty if the script names none",
    ),
    "loss": Field(
        "number or null",
        "loss of the newest step that rank 0 has reported. Pages and commands call it *step loss*, since "
        "`metrics` may have another `loss`",
    ),
    "metrics": Field(
        "mapping",
        "other numbers of rank 0; after `finish`, the results",
    ),
    "early_stop": Field(
        "mapping or null",
        "with an early stop: its `metric`, the `best` value and the `step` of that. Also the reports `since` then, the "
        "`last` value, and whether training is `over`. Null without one",
    ),
    "scaling": Field(
        "mapping or null",
        "with a scaling policy its newest decision: the `workers` that it chose `at` a time, and the number that its "
        "rules `wanted`. `rule` says which one decided, and `reason` why. `steps`: how many it made. Null without one",
    ),
    "proposals": Field(
        "list",
        "values that past runs proposed when the run was created, each with its evidence: `field`, `value`, `now`, "
        "`reason`, `runs` and `figures`. `taken`: whether the run has it, as with `brain: cluster`",
    ),
    "samples.seen": Field(
        "integer",
        "samples consumed since step 0, each counted once",
    ),
    "samples.per_second": Field(
        "number",
        "recent throughput of all ranks together. While none trains, the last known one",
    ),
    "attempts": Field(
        "list",
        "every attempt, oldest first; see below",
    ),
    "restarts.used, restarts.limit": Field(
        "integer",
        "the budget",
    ),
    "checkpoints.committed": Field(
        "integer",
        "how many a controller has seen. Without a controller there may be more",
    ),
    "checkpoints.newest": Field(
        "mapping or null",
        "`step`, `attempt`, `key` of the manifest, and `at`, when it was seen",
    ),
    "checkpoints.unsaved": Field(
        "mapping or null",
        "`step`, `worker`, `reason` and `attempt` of a save that failed, until one succeeds",
    ),
    "checkpoints.left_out": Field(
        "mapping or null",
        "`step`, `reason` and `attempt` of the first save since the last checkpoint that was left out, as "
        "the one before was still being written. It stays",
    ),
    "checkpoints.unpruned": Field(
        "mapping or null",
        "`step` and `reason` of a checkpoint after which nothing was removed, as what would stay is "
        "damaged. Until a newer one is committed",
    ),
    "checkpoints.bad_copy": Field(
        "mapping or null",
        "`step`, `worker`, `reason` and `attempt` of the last damaged copy, in a worker's memory or on "
        "its disk. It was not used. It stays, since a machine may be bad",
    ),
    "placement": Field(
        "list",
        "the workers as the engine sees them, while the run goes on: `worker`, `phase`, `machine`, `waiting`, "
        "`reason` and `standby`. Empty if no controller has asked",
    ),
    "excluded_machines": Field(
        "list",
        "machines that somebody has excluded",
    ),
    "ranks": Field(
        "list",
        "newest report of each rank while the run goes on; see below",
    ),
    "usage": Field(
        "list",
        "what each worker uses while the run goes on, with `worker`, `at`, `machine` and `ranks`. `cpu` is in "
        "processors, `gpu_utilisation` from 0 to 1. `memory_bytes`, `gpu_memory_bytes` and `state_bytes` are bytes. "
        "`received_bytes_per_second` and `sent_bytes_per_second` are of the network. What is not known is left out",
    ),
    "stragglers": Field(
        "list",
        "the ranks that hold all others up, for 10 s or more. Their forward pass takes more than "
        "twice the median of the others",
    ),
    "goodput": Field(
        "number",
        "share of the wall time in steps that count, 0 to 1",
    ),
    "seconds": Field(
        "mapping",
        "where the time went; see below",
    ),
}

#: Of an entry of `attempts`.
ATTEMPT: Mapping[str, Field] = {
    "number": Field(
        "integer",
        "from 1",
    ),
    "job": Field(
        "text or null",
        "the engine's name of it, once the engine has it",
    ),
    "in_place": Field(
        "true or false",
        "whether it runs in the job of an earlier attempt, whose agents have survived",
    ),
    "phase": Field(
        "text",
        "`paused`, `submitting`, `live`, `ending`, `gone`",
    ),
    "workers": Field(
        "integer",
        "workers it has, or will have",
    ),
    "from_step": Field(
        "integer",
        "step of the checkpoint it began from",
    ),
    "last_step": Field(
        "integer",
        "the newest step it is known to have reached",
    ),
    "planned_at": Field(
        "number",
        "when it was decided",
    ),
    "submitted_at, ended_at": Field(
        "number or null",
        "when the engine had it; when it was seen to end, or ordered to",
    ),
    "cause": Field(
        "text or null",
        "`succeeded`, `failure`, `preemption`, `unattended`, `scale step`, `resume`, `stop`, `deadline`",
    ),
    "failure": Field(
        "mapping or null",
        "`kind` ([the class](failures.md#classes)) and `reason`. If known, also `exit_code`, `worker`, "
        "`rank`, `error`, `traceback` or else the last lines of output. `all_there`: every agent has "
        "reported, as when only the network between them failed",
    ),
    "recovery": Field(
        "mapping or null",
        "the time from the last step of the attempt before to its own first step, in seconds. Its parts are "
        "`noticing`, `deciding`, `meeting`, `restoring` and `starting`; `seconds` is their sum. The removal of the "
        "former job and the pause are in `deciding`",
    ),
    "stretches": Field(
        "list",
        "one for each generation: `generation`, `world_size`, `workers`, `started_at`, `first_step_at`, "
        "`last_step_at`, `from_step`, `to_step`, `stepping_seconds`, `saving_seconds`, "
        "`restoring_seconds`, `restored_bytes`, `to_restore_bytes`. `stayed`: how many ranks have the processes that "
        "they had before, if any",
    ),
}

#: Of an entry of `ranks`.
RANK: Mapping[str, Field] = {
    "rank, worker, step": Field(
        "integer, text, integer",
        "its number, its worker, its newest step",
    ),
    "at": Field(
        "number",
        "when it last advanced",
    ),
    "step_seconds, forward_seconds": Field(
        "number",
        "mean time of a step, and of the model's forward pass",
    ),
    "loss": Field(
        "number or null",
        "the loss that it has reported, if any",
    ),
    "memory_bytes": Field(
        "integer",
        "the most memory that its process has had",
    ),
}
