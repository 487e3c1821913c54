"""A launcher within a shell's line: `bash -c "cd /app && export A=1; exec torchrun train.py"`.

Everything before the launcher is kept: the same shell starts the agent with the same line, in the launcher's place.
Commands after the launcher are refused, because a run ends with its launcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_elastic.engines.kube.manifests.commands.shell import (
    Command,
    Unreadable,
    Word,
    commands_of,
    filled,
)
from airflow_elastic.engines.kube.manifests.commands.variables import Scope, unmarked
from airflow_elastic.spec.errors import Problem, SpecError

_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")

#: Launchers whose names have no other meaning.
NAMED = re.compile(
    r"(?<![\w-])(torchrun|dlrover-run|accelerate launch|torch\.distributed\.(?:run|launch)|horovodrun|mpirun"
    r"|dlrover\.trainer\.torch\.elastic_run|accelerate\.commands\.launch)(?![\w-])"
)
_POSITIONAL = re.compile(r"\$(?:[@*#0-9]|\{[@*#0-9])")

Start = Callable[[Sequence[str]], "int | None"]


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of a line.

    Attributes:
        shell: the shell and its options.
        before: the line up to the launcher's command, with the variables that it sets only for that.
        wrapper: the words between, in the form of the launcher's own command.
        raw: the same as they are written, one for one.
        launch: the launcher and everything behind it.
        after: redirections of the command.
        needed: whether the shell does more than start the launcher.
    """

    shell: tuple[str, ...]
    before: str
    wrapper: tuple[str, ...]
    raw: tuple[str, ...]
    launch: list[str]
    after: str
    needed: bool

    def around(self, places: Sequence[int]) -> list[str]:
        """The words that start the agent by this line, behind these words of the wrapper; or none."""
        if not self.needed and not places:
            return []
        between = " ".join(dict.fromkeys(self.raw[i] for i in places))
        text = " ".join(filter(None, (f"{self.before}exec", between, '"$@"', self.after)))
        return [*self.shell, text, self.shell[0].rpartition("/")[2]]


def line_of(words: Sequence[str]) -> int | None:
    """The position of the line that these words give to a shell; None if there is none."""
    if words[0].rpartition("/")[2] not in _SHELLS:
        return None
    has_line, skip = False, False
    for at, word in enumerate(words[1:], 1):
        if skip:
            skip = False
        elif word.startswith(("-", "+")) and word not in ("-", "--"):
            has_line = has_line or (not word.startswith("--") and "c" in word)
            skip = re.fullmatch(r"[-+][a-z]*o", word) is not None  # of `-o pipefail`
        else:
            return at if has_line else None
    return None


def read_line(words: Sequence[str], at: int, path: str, scope: Scope, start: Start) -> Line | None:
    """The launcher in the line of a shell; None if it has none.

    Args:
        words: the shell, its options, the line, and its arguments.
        at: the position of the line.
        path: of the command, for errors.
        scope: the container's variables.
        start: finds the launcher in the words of a command.

    Raises:
        SpecError: there is a launcher, but it cannot be taken out of the line.
    """
    line = words[at]
    try:
        commands = commands_of(line)
    except Unreadable as error:
        if not NAMED.search(line):
            return None
        text = f"the launcher's command as a list of words: {error} in a shell's line cannot be read here"
        raise SpecError(Problem(path, unmarked(line), text)) from None
    starting = [i for i, one in enumerate(commands) if _starts(one, scope, start)]
    if not starting:
        if found := NAMED.search(line):
            text = f"{found[0]} as a command of its own, at the end of the line: where it is now, it cannot be found"
            raise SpecError(Problem(path, unmarked(line), text))
        return None
    _refuse_around(commands, starting, line, path)
    return _line(words, at, commands[: starting[0] + 1], path, scope, start)


def _starts(command: Command, scope: Scope, start: Start) -> bool:
    words = [text for word in command.words[command.assignments() :] for text in filled(word, {}, scope)]
    return start(words) is not None


def _refuse_around(commands: list[Command], starting: list[int], line: str, path: str) -> None:
    """Refuse a line that does not end with its launcher, or has several."""
    one, why = commands[starting[0]], None
    if len(starting) > 1:
        why = "one launcher in the line: a run is one training"
    elif one.depth:
        why = (
            "the launcher outside of if, for, while and brackets: it is not known here whether it is started"
        )
    elif one.before in ("|", "|&", "||"):
        why = f"the launcher without `{one.before}` before it"
    elif one.after == "&":
        why = "the launcher without & behind it: the line would end at once"
    elif commands[starting[0] + 1 :]:
        after = commands[starting[0] + 1]
        begin = after.words[0].start if after.words else after.redirects[0][0]
        told = f"{after.before.strip() or 'a new line,'} {line[begin:][:40]}"
        better = "the run keeps its output" if after.before == "|" else "do it in a task of its own"
        why = f"nothing behind the launcher's command ({told}), as a run ends with its launcher: {better}"
    if why is not None:
        raise SpecError(Problem(path, unmarked(line), why))


def _line(
    words: Sequence[str], at: int, commands: list[Command], path: str, scope: Scope, start: Start
) -> Line:
    line, (*earlier, command) = words[at], commands
    known = _set_before(earlier, scope)
    count, behind = command.assignments(), list(words[at + 2 :])
    texts: list[str] = []
    raws: list[str] = []
    taken = False
    for word in command.words[count:]:
        if word.raw in ("$@", '"$@"', "$*"):
            some, taken = behind, True
        else:
            some = filled(word, known, scope)
        texts += some
        raws += [word.raw] * len(some)
    begin = start(texts) or 0
    if words[at + 1 :] and not taken and (behind or words[at + 1] not in ("-", "--", "_", "bash", "sh")):
        why = "no words behind the shell's line, which does not use them"
        raise SpecError(Problem(path, [unmarked(word) for word in words[at + 1 :]], why))
    before = line[: command.words[count].start]
    after = " ".join(line[a:b] for a, b in command.redirects)
    if found := _POSITIONAL.search(" ".join((before, *raws[:begin], after))):
        why = f"a line without {found[0]} before the launcher: the agent's command is put there"
        raise SpecError(Problem(path, unmarked(line), why))
    only_set = all(one.words and one.words[0].literal == "set" for one in earlier)
    login = any(re.fullmatch(r"-[a-z]*[li][a-z]*|--login", flag) for flag in words[1:at])
    needed = not only_set or bool(count or after or login)
    return Line(
        shell=tuple(words[:at]),
        before=before if needed else "",
        wrapper=tuple(texts[:begin]),
        raw=tuple(raws[:begin]),
        launch=texts[begin:],
        after=after,
        needed=needed,
    )


def _set_before(commands: Sequence[Command], scope: Scope) -> Known:
    """The variables that commands before the launcher set for good."""
    known = Known()
    for command in commands:
        first = command.words[0].literal if command.words else None
        if first in ("read", "source", ".", "eval", "unset", "mapfile"):
            known.anything = True
        for name, word in _sets(command, first):
            values = filled(word, known, scope)
            plain = not command.depth and len(values) == 1 and unmarked(values[0]) == values[0]
            known[name.rstrip("+")] = (
                values[0].partition("=")[2] if plain and not name.endswith("+") else None
            )
    return known


def _sets(command: Command, first: str | None) -> list[tuple[str, Word]]:
    count = command.assignments()
    words = command.words[:count] if count == len(command.words) else []
    if first in ("export", "declare", "local", "readonly", "typeset", "for"):
        words = command.words[1:]
    return [(word.raw.partition("=")[0], word) for word in words if "=" in word.raw]


class Known(dict[str, "str | None"]):
    """Variables that a line has set; None for values that only the pod knows. The line may have set any name."""

    anything = False

    def __contains__(self, key: object) -> bool:
        return self.anything or super().__contains__(key)

    def __missing__(self, key: str) -> None:
        return None
