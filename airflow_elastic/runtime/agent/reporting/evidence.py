"""Evidence of why a rank failed: the error that it has recorded itself, or the last lines of its output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.adapters.host.memory import limit_bytes
from airflow_elastic.adapters.host.processes import out_of_memory_kills
from airflow_elastic.spec import layout
from airflow_elastic.spec.status import RankError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.adapters.records.job_files import JobRecord
    from airflow_elastic.runtime.agent.reporting.memory_shortage import MemoryShortage
    from airflow_elastic.spec.run import SecretRef

#: How much of a rank's output is evidence: enough for a usage message with many options, and the error below it.
LINES, _LINE_BYTES = 40, 150

#: The same for a launcher, which prints many lines of its own below its ranks' output.
LAUNCHERS_LINES = 120

_LONGEST_TRACE, _LONGEST_ERROR = 20_000, 2_000  # characters of an error that torch has recorded

_SIGKILL = 9
_KILLED = frozenset({1, 2, 3, _SIGKILL, 13, 15})  # ended from outside: the output does not say why

#: How torchrun reports a rank that has failed; and accelerate, if it starts a single process.
_TORCHRUN = re.compile(r"^.*failed \(exitcode: (-?\d+)\) local_rank: ", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_ACCELERATE = re.compile(r"^subprocess\.CalledProcessError: .* exit status (\d+)\.", re.MULTILINE)

#: Colours, and other codes for terminals.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Worker(Protocol):
    """The part of `agent.worker.Worker` that is used here."""

    record: JobRecord
    shortage: MemoryShortage

    @property
    def generation(self) -> int: ...
    @property
    def logs(self) -> Path: ...
    @property
    def rank_files(self) -> Path: ...


def rank_error(node: _Worker, rank: int, exit_code: int, kills: int) -> RankError:
    """How a rank died.

    Args:
        node: its worker.
        rank: global rank.
        exit_code: as subprocess gives it: negative for a signal.
        kills: how many processes of this worker the kernel had killed for memory before.
    """
    number = -exit_code if exit_code < 0 else None
    try:
        kept = json.loads(Path(f"{node.rank_files}-rank-{rank}.error.json").read_bytes())
    except (OSError, ValueError):
        kept = recorded(Path(f"{node.rank_files}-rank-{rank}.torch.json"))
    trace = kept.get("traceback")
    if not trace and not kept.get("error") and number not in _KILLED:
        trace = last_lines(node.logs / layout.rank_log(node.generation, rank))
    secrets = list(values(node.record.spec.secrets))
    return RankError(
        rank=rank,
        exit_code=exit_code if exit_code >= 0 else None,
        signal=number,
        at=kept.get("at") or time.time(),
        error=without_secrets(kept.get("error"), secrets),
        traceback=without_secrets(trace, secrets),
        out_of_memory=(out := number == _SIGKILL and out_of_memory_kills() > kills),
        shortage=_limit() if out else node.shortage.signs() if number == _SIGKILL else None,
    )


def _limit() -> str | None:
    """The memory limit of this worker, in words; None if there is none."""
    limit = limit_bytes()
    return None if limit is None else f"limit {limit / 2**20:.0f} MiB"


def recorded(path: Path) -> dict[str, Any]:
    """The failure that torch's `record` has written, in our own form. Empty if it has written none.

    It is the only record if the script ran below another program.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        message = json.loads(path.read_bytes())["message"]
        if isinstance(message, str):
            return {"error": message[:_LONGEST_ERROR]}
        more = message["extraInfo"]
        trace = str(more["py_callstack"])[-_LONGEST_TRACE:]
        return {
            "error": str(message["message"])[:_LONGEST_ERROR],
            "traceback": trace,
            "at": float(more["timestamp"]),
        }
    return {}


def last_lines(log: Path, count: int = LINES) -> str | None:
    """The last lines of a rank's output, as a terminal would show them. None if it has printed nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - count * _LINE_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # Progress bars return to the beginning of their line and overwrite it. Keep the text that was written last.
    lines = [_ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in text.split("\n")]
    return "\n".join(lines[-count:]).strip("\n") or None


def of_rank(code: int, printed: str) -> tuple[int, str]:
    """Exit code and output of the rank, if the launcher reports below that output how its rank has ended.

    Otherwise both arguments, unchanged.

    Args:
        code: the launcher's exit code.
        printed: the end of the output of both.
    """
    if (found := _TORCHRUN.search(printed)) is not None:
        return int(found[1]), printed[: found.start()].rstrip()
    if (found := _ACCELERATE.search(printed)) is not None:
        before, _, after = printed[: found.start()].rpartition(_TRACEBACK)
        return int(found[1]), (before or after).rstrip()
    return code, printed


def values(secrets: Iterable[SecretRef]) -> Iterable[str]:
    """The values of the secrets in the ranks' environment, which no report may show."""
    for secret in secrets:
        try:
            value = (
                Path(secret.key).read_text().strip()
                if secret.source == "file"
                else os.environ.get(secret.name)
            )
        except OSError:
            continue
        if value:
            yield value


def without_secrets(text: str | None, secrets: Iterable[str]) -> str | None:
    """The text with `***` in place of the secrets."""
    for secret in secrets if text else ():
        text = text.replace(secret, "***") if text else text
    return text
