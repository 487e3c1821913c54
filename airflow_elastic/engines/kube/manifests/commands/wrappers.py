"""Programs before a launcher that start the command behind them: `env`, `numactl`, `uv run`, ….

The words between such a program and the launcher belong to the program, and are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_elastic.spec.errors import Problem, SpecError

#: By their names, or their first two words.
_WRAPPERS = frozenset(
    (
        *(
            "env",
            "nice",
            "ionice",
            "chrt",
            "taskset",
            "numactl",
            "stdbuf",
            "setsid",
            "nohup",
            "prlimit",
            "unbuffer",
        ),
        *(
            "tini",
            "tini-static",
            "docker-init",
            "dumb-init",
            "catatonit",
            "catchsegv",
            "gosu",
            "su-exec",
            "setpriv",
        ),
        *(
            "timeout",
            "exec",
            "command",
            "nvprof",
            "ncu",
            "nv-nsight-cu-cli",
            "rocprof",
            "rocprofv3",
            "omniperf",
        ),
        *("nsys profile", "nsys launch", "py-spy record", "vtune -collect", "scalene run", "memray run"),
        *("uv run", "poetry run", "pdm run", "pipenv run", "pixi run", "hatch run", "rye run"),
        *("conda run", "mamba run", "micromamba run"),
        *("doppler run", "aws-vault exec", "opentelemetry-instrument", "ddtrace-run", "wandb-osh"),
    )
)

#: Programs that start ranks themselves, and for which there is no launcher.
OTHER_LAUNCHERS = frozenset(
    (
        *("horovodrun", "deepspeed", "mpirun", "mpiexec", "mpiexec.hydra", "srun", "colossalai", "composer"),
        *(
            "tune run",
            "fabric run",
            "lightning run",
            "ray job",
            "ray start",
            "torchx run",
            "bagua.distributed",
        ),
    )
)

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def is_one_of(names: frozenset[str], words: Sequence[str]) -> bool:
    """Whether words begin with one of these programs, in whatever folder it is."""
    first = words[0].rpartition("/")[2]
    return first in names or " ".join((first, *words[1:2])) in names


def is_wrapper(words: Sequence[str]) -> bool:
    """Whether words begin with a program that starts the command behind it, such as an image's entry point."""
    return is_one_of(_WRAPPERS, words) or re.search(r"(^|[/_-])entrypoint(\.sh)?$", words[0]) is not None


def kept(wrapper: Sequence[str], path: str) -> tuple[list[int], float | None]:
    """The positions of the words before a launcher that are put before the agent, and the time limit in seconds.

    Raises:
        SpecError: they would take something from the agent that it needs.
    """
    places: list[int] = []
    limits: list[float] = []
    starts = [i for i in range(len(wrapper)) if i == 0 or is_one_of(_WRAPPERS, wrapper[i:])]
    for start, end in zip(starts, [*starts[1:], len(wrapper)], strict=True):
        words, name = wrapper[start:end], wrapper[start].rpartition("/")[2]
        if name == "timeout":
            limits += filter(None, [_limit(words, path)])
            continue
        if name == "env":
            _check_env(words, path)
        places += range(start + (name in ("exec", "command")), end)
    return places, min(limits, default=None)


def _check_env(words: Sequence[str], path: str) -> None:
    for word in words[1:]:
        if word in ("-", "-i", "--ignore-environment") or word.startswith(("-S", "--split-string")):
            text = f"env without {word}: the agent gets its worker's number in variables"
            raise SpecError(Problem(path, " ".join(words), text))
        if word.startswith("AIRFLOW_ELASTIC_"):
            raise SpecError(Problem(path, word, "any name but our own AIRFLOW_ELASTIC_*"))


def _limit(wrapper: Sequence[str], path: str) -> float | None:
    """The run's deadline by `timeout`: 43200 for `timeout -k 30 12h`."""
    rest = list(wrapper[1:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        short, long = re.fullmatch(r"-([ks])(.*)", word), re.fullmatch(r"--(kill-after|signal)(=.*)?", word)
        value = (short and short[2]) or (long and (long[2] or "").removeprefix("=")) or ""
        if (short or long) and not value and rest:
            value = rest.pop(0)
        of_signal = (short and short[1] == "s") or (long and long[1] == "signal")
        if of_signal and value.upper().removeprefix("SIG") not in ("TERM", "15"):
            text = "timeout with SIGTERM, at which the agent saves; or active_deadline_seconds in its place"
            raise SpecError(Problem(path, " ".join(wrapper), text))
    found = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([smhd]?)", rest[0]) if len(rest) == 1 else None
    if found is None:
        raise SpecError(Problem(path, " ".join(wrapper), "timeout with a duration such as 3600, 90m or 12h"))
    return float(found[1]) * _SECONDS[found[2]] or None
