"""Where the launcher is in a container's command, and which words come before it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from airflow_elastic.engines.kube.manifests.commands.launches import (
    Launch,
    is_python,
    launch_of,
    launcher_of,
    refuse_marks,
)
from airflow_elastic.engines.kube.manifests.commands.lines import NAMED, Line, line_of, read_line
from airflow_elastic.engines.kube.manifests.commands.variables import (
    Scope,
    filled_by_kubernetes,
    for_kubernetes,
    unmarked,
)
from airflow_elastic.engines.kube.manifests.commands.wrappers import (
    OTHER_LAUNCHERS,
    is_one_of,
    is_wrapper,
    kept,
)
from airflow_elastic.spec.errors import Problem, SpecError

_KNOWN = "torchrun, accelerate launch, dlrover-run, python or a program that is one rank"


def find_launch(words: Sequence[str], path: str, scope: Scope | None = None) -> Launch:
    """How a container's command starts ranks.

    Args:
        words: `command` and `args`, one after another.
        path: of the command, for errors.
        scope: the container's variables.

    Raises:
        SpecError: a part of it cannot be kept.
    """
    scope = scope or Scope()
    return _find([filled_by_kubernetes(word, scope) for word in words], path, scope)


def _find(words: list[str], path: str, scope: Scope) -> Launch:
    if found := launcher_of(words):
        return launch_of(*found, path)
    if is_one_of(OTHER_LAUNCHERS, words):
        raise SpecError(Problem(path, _shown(words), _KNOWN))
    if (at := line_of(words)) is not None:
        line = read_line(words, at, path, scope, _start)
        return _program(words, path) if line is None else _behind_line(line, path, scope)
    start = _start(words)
    if start:
        inner = _find(words[start:], path, scope)
        if inner.launcher != "python":  # otherwise the inner program is one rank, with all words before it
            places, seconds = kept(words[:start], path)
            wrapper = (*(for_kubernetes(words[i]) for i in places), *inner.wrapper)
            return replace(inner, wrapper=wrapper, deadline=_least(seconds, inner.deadline))
    elif (named := next(filter(NAMED.fullmatch, _pairs(words)), None)) is not None:
        text = (
            f"{named} at the beginning, or behind a known program that starts it, such as env, numactl, "
            f"nsys profile or uv run. What {words[0]} does with it is not known here"
        )
        raise SpecError(Problem(path, _shown(words), text))
    return _program(words, path)


def _start(words: Sequence[str]) -> int | None:
    """The position where a launcher begins, or a shell with a line; None if the words start something else."""
    if not words:
        return None
    if launcher_of(words) or is_one_of(OTHER_LAUNCHERS, words) or line_of(words) is not None:
        return 0
    if not is_wrapper(words):
        return None
    return next((i for i in range(1, len(words)) if _start(words[i:]) == 0), None)


def _behind_line(line: Line, path: str, scope: Scope) -> Launch:
    inner = _find(line.launch, path, scope)
    places, seconds = kept(line.wrapper, path) if line.wrapper else ([], None)
    shell = line.around(places)
    return replace(
        inner,
        wrapper=(*map(for_kubernetes, shell), *inner.wrapper),
        deadline=_least(seconds, inner.deadline),
    )


def _program(words: list[str], path: str) -> Launch:
    """The words are one rank: a Python script, or any other program."""
    refuse_marks(words, path)
    if is_python(words[0]):
        rest = words[1:]
        while rest[:1] == ["-u"]:  # the agent's ranks never buffer
            rest = rest[1:]
        if rest[:1] == ["-m"] or (rest and rest[0].endswith(".py")):
            return Launch("python", tuple(rest), python=words[0])
    return Launch("python", tuple(words))


def _pairs(words: Sequence[str]) -> list[str]:
    """Each word, and each pair of neighbours."""
    names = [word.rpartition("/")[2] for word in words]
    return [*names, *(f"{a} {b}" for a, b in itertools.pairwise(names))]


def _least(*seconds: float | None) -> float | None:
    return min((one for one in seconds if one is not None), default=None)


def _shown(words: Sequence[str]) -> list[str]:
    return [unmarked(word) for word in words]
