"""What a run is: the whole specification of one training, frozen and validated.

Nothing here reads a clock, a file or the environment. A `RunSpec` that exists is valid. A bad value raises `SpecError`
when it is built, with the path of its field, the given value and the allowed ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.identity import without_code_paths
from airflow_elastic.spec.models.start import StartFrom
from airflow_elastic.spec.scaling.form import as_written, contradictions, unfolded
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.spec.scaling.steps import ScaleStep
from airflow_elastic.spec.scaling.workers import Workers
from airflow_elastic.spec.training.early_stop import early_stop_rule
from airflow_elastic.spec.validation import (
    Checks,
    choice,
    env_name,
    finite_positive,
    non_negative_int,
    not_json,
    script_file,
    script_text,
)

__all__ = [
    "BRAIN_MODES",
    "CLEANUP_POLICIES",
    "RESTART_ME",
    "RESTART_POLICIES",
    "RETRYABLE_EXIT_CODES",
    "SECRET_SOURCES",
    "Health",
    "RestartPolicy",
    "RunSpec",
    "ScaleStep",
    "SecretRef",
    "Workers",
]

RESTART_POLICIES = ("Never", "OnFailure", "Always", "ExitCode")
CLEANUP_POLICIES = ("None", "All", "Unfinished")
BRAIN_MODES = ("manual", "single", "cluster")
SECRET_SOURCES = ("env", "file", "kubernetes")

#: "Restart me": the exit code of a script that asks for it.
RESTART_ME = 138

#: Exit codes that `ExitCode` restarts: interrupted, killed, terminated, and "restart me".
RETRYABLE_EXIT_CODES = (130, 137, 143, RESTART_ME)

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What happens after an attempt has failed. Preemptions and scale steps are no failures and cost nothing.

    Attributes:
        policy: what is restarted. `Never`: nothing. `OnFailure`: any failure. `ExitCode`: only exit codes in
            `exit_codes`, and lost workers. `Always`: also a success, until the budget, the deadline or a stop ends the
            run.
        exit_codes: codes that `ExitCode` restarts, in addition to 130, 137, 138 and 143.
        backoff_limit: restarts that the whole run may use, for all workers together.
        backoff_seconds: pause before the second restart in a row without progress; it doubles with each further one.
            The first restart is immediate.
        backoff_max_seconds: the longest pause.
    """

    policy: str = "OnFailure"
    exit_codes: tuple[int, ...] = ()
    backoff_limit: int = 6
    backoff_seconds: float = 1.0
    backoff_max_seconds: float = 300.0

    def __post_init__(self) -> None:
        with Checks() as check:
            check("policy", self.policy, choice(RESTART_POLICIES))
            for i, code in enumerate(self.exit_codes):
                known = isinstance(code, int) and not isinstance(code, bool) and 1 <= code <= 255
                check.that(known, f"exit_codes.{i}", code, "an integer from 1 to 255")
            check("backoff_limit", self.backoff_limit, non_negative_int)
            check("backoff_seconds", self.backoff_seconds, finite_positive)
            check("backoff_max_seconds", self.backoff_max_seconds, finite_positive)

    @property
    def retryable(self) -> frozenset[int]:
        """All exit codes that `ExitCode` restarts."""
        return frozenset(RETRYABLE_EXIT_CODES) | frozenset(self.exit_codes)


@dataclass(frozen=True, slots=True)
class Health:
    """Which silence counts as a failure.

    Attributes:
        no_progress_seconds: a run without a new step for so long hangs, and its attempt is ended.
        start_seconds: the same from a start of the ranks to their first step: imports, restore, compilation. The time
            starts again whenever a part of the checkpoint is read. After the first start of the run the limit is three
            times its longest start plus `no_progress_seconds`, where that is less.
        grace_seconds: the time that workers get to save and end before they are killed.
        unattended_seconds: workers that see no controller for so long save and end. The next controller starts them
            again, which costs no restart. At least 10.
    """

    no_progress_seconds: float = 600.0
    start_seconds: float = 1800.0
    grace_seconds: float = 30.0
    unattended_seconds: float = 1800.0

    def __post_init__(self) -> None:
        with Checks() as check:
            check("no_progress_seconds", self.no_progress_seconds, finite_positive)
            check("start_seconds", self.start_seconds, finite_positive)
            check("grace_seconds", self.grace_seconds, finite_positive)
            check("unattended_seconds", self.unattended_seconds, finite_positive)
            if check.passed:  # a shorter time would end runs whose controller is only busy
                long = self.unattended_seconds >= 10.0
                check.that(long, "unattended_seconds", self.unattended_seconds, "at least 10 seconds")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """An environment variable of the workers whose value is never stored.

    Attributes:
        name: the variable that the training script reads.
        source: where the value is. `env`: a variable of the process that submits. `file`: a file on the worker's
            machine. `kubernetes`: a Secret of the cluster, for engines whose workers are pods.
        key: the name of that variable, the path of the file, or `secret-name/key`.
    """

    name: str
    source: str
    key: str

    def __post_init__(self) -> None:
        with Checks() as check:
            check("name", self.name, env_name)
            check("source", self.source, choice(SECRET_SOURCES))
            check.that(bool(self.key), "key", self.key, "the name of a variable, or the path of a file")
            if self.source == "kubernetes":
                whole = len(self.key.split("/")) == 2 and all(self.key.split("/"))
                check.that(
                    whole, "key", self.key, "the Secret's name and key, e.g. s3-credentials/access-key"
                )


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One training of one model to its end.

    Attributes:
        command: the script and its arguments, e.g. `("train.py", "--epochs", "3")`; or `("-m", "pkg.train")`.
        script: the text of the script, at most 256 KiB. Workers write it to a file, whose name is the first word of
            `command`, and run that file. So they need no folder with the code. The journal stores it: put no secrets
            here. The same run may go on with a changed text, as it does when a file is changed. Default: the script is
            a file that workers have.
        name: names jobs and logs; letters, digits, `.`, `_`, `-`.
        launcher: how ranks are started: a name from the launcher registry.
        launcher_options: options of this launcher, which validates them.
        engine: where workers run: a name from the engine registry.
        engine_options: options of this engine, which validates them.
        working_dir: where the command runs. Default: where it is submitted from. The same run may go on in another one.
        source_root: the folder of the code, such as that of one version of a DAG bundle. Paths in the command, in `env`
            and in options may be below it. The same run may go on in another one. Default: none.
        active_deadline_seconds: time limit of the whole run, with all attempts. Default: no limit.
        cleanup: which workers the engine removes when the run has ended: None, All, or Unfinished (those that run).
        scaling: planned scale steps. In YAML and in `from_dict` also a mapping with `steps` and `policy`.
        env: plain environment variables of the workers. The journal stores them, so put no secrets here.
        secrets: environment variables by reference.
        tensorboard: write the history also as TensorBoard's event files, in `tensorboard/` below the run URI. Needs the
            extra `tensorboard` where workers run. Default: false.
        early_stop: end the training when a metric has not improved for so many reports, e.g. `val_loss 5`, or
            `max accuracy 3 by 0.001`. The best checkpoint is kept. Default: none.
        start_from: begin with the weights of another run, of a promoted model, or of a file. Default: from scratch.
        scaling_policy: rules by which the run chooses its number of workers itself. In YAML: `scaling: {policy: …}`.
        brain: what the memory of past runs may do. `manual`: only propose. `single`: what this run has measured in its
            former attempts counts. `cluster`: all runs count, and share the capacity. Default: nothing.
        evaluation: measure what `start_from` names, and save nothing. Default: false.
    """

    command: tuple[str, ...]
    name: str = "run"
    launcher: str = "torchrun"
    launcher_options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "local"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    working_dir: str | None = None
    source_root: str | None = None
    workers: Workers = field(default_factory=Workers)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    health: Health = field(default_factory=Health)
    active_deadline_seconds: float | None = None
    cleanup: str = "Unfinished"
    scaling: tuple[ScaleStep, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[SecretRef, ...] = ()
    tensorboard: bool | None = None  # None is left out of the digest, which runs of earlier releases keep
    script: str | None = None
    start_from: StartFrom | None = None
    early_stop: str | None = None
    evaluation: bool | None = None
    scaling_policy: ScalingPolicy | None = None
    brain: str | None = None

    def __post_init__(self) -> None:
        with Checks() as check:
            words = isinstance(self.command, tuple) and all(isinstance(word, str) for word in self.command)
            check.that(
                words and bool(self.command) and bool(self.command[0]),
                "command",
                self.command,
                "a tuple of strings: a script and its arguments; the first is not empty",
            )
            if self.script is not None and check.passed:
                check("script", self.script, script_text)
                check("command", self.command[0], script_file)
            check.that(
                not self.evaluation or self.start_from is not None,
                "evaluation",
                self.evaluation,
                "none without start_from, which says what to evaluate",
                across=True,
            )
            good = bool(_NAME.fullmatch(self.name)) and len(self.name) <= 200
            check.that(good, "name", self.name, "1 to 200 letters, digits, '.', '_', '-', not at the ends")
            check.that(bool(self.launcher), "launcher", self.launcher, "the name of a launcher")
            check.that(bool(self.engine), "engine", self.engine, "the name of an engine")
            if self.active_deadline_seconds is not None:
                check("active_deadline_seconds", self.active_deadline_seconds, finite_positive)
            if self.early_stop is not None:
                check("early_stop", self.early_stop, early_stop_rule)
            check("cleanup", self.cleanup, choice(CLEANUP_POLICIES))
            if self.brain is not None:
                check("brain", self.brain, choice(BRAIN_MODES))
            for name in ("launcher_options", "engine_options"):
                for path, value in not_json(getattr(self, name)):
                    allowed = "a JSON value: numbers are finite, keys of a mapping are text"
                    check.that(False, f"{name}.{path}", value, allowed)
            for i, step in enumerate(self.scaling):
                permitted = self.workers.permits(step.workers)
                allowed = self.workers.allowed() + _to_widen(self.workers, step.workers)
                check.that(permitted, f"scaling.{i}.workers", step.workers, allowed, across=True)
            if self.scaling_policy is not None:
                for path, value, allowed in contradictions(self.scaling_policy, self.workers):
                    check.that(False, f"scaling_policy.{path}".rstrip("."), value, allowed, across=True)
            for key in self.env:
                check(f"env.{key}", key, env_name)
                check.that(
                    not key.startswith("AIRFLOW_ELASTIC_"),
                    f"env.{key}",
                    key,
                    "any name but our own AIRFLOW_ELASTIC_*",
                )
            for i, secret in enumerate(self.secrets):
                check.that(
                    secret.name not in self.env,
                    f"secrets.{i}.name",
                    secret.name,
                    "a name that env does not set too",
                    across=True,
                )
            unit = self.workers.node_unit
            check.that(
                not self.checkpoint.buddies or self.workers.at_most > unit,
                "checkpoint.buddies",
                True,
                f"false for at most {unit} worker{'s' * (unit > 1)}, one unit: nobody else could keep its state",
                across=True,
            )
            endless = self.restart.policy == "Always" and not (
                self.restart.backoff_limit or self.active_deadline_seconds
            )
            check.that(
                not endless,
                "restart.policy",
                "Always",
                "a restart.backoff_limit or active_deadline_seconds with Always",
                across=True,
            )

    @classmethod
    def from_dict(cls, data: Any) -> RunSpec:
        """Build a specification from plain values, as read from YAML or JSON. Raises SpecError.

        `start_from` may be a text, which is its `source`. `scaling` may be a mapping with `steps` and `policy`.
        """
        if isinstance(data, Mapping):
            if isinstance(data.get("start_from"), str):
                data = {**data, "start_from": {"source": data["start_from"]}}
            plain = unfolded(data)
        else:
            plain = data
        try:
            return decode(cls, plain)
        except SpecError as error:
            raise as_written(error, data) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` of them equals this specification."""
        plain: dict[str, Any] = encode(self)
        if not self.workers.standby:  # runs of older releases, which do not know it, keep their digest
            del plain["workers"]["standby"]
        return plain

    @property
    def digest(self) -> str:
        """Identifies the training, independent of its folder: 16 hex digits of the SHA-256 of its canonical JSON."""
        canonical = json.dumps(without_code_paths(self.to_dict()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _to_widen(workers: Workers, wanted: int) -> str:
    """What to change so that a number of workers out of bounds is allowed."""
    if wanted > workers.at_most:
        return "; raise workers.max for more"
    return "; lower workers.min for fewer" if wanted < workers.at_least else ""
