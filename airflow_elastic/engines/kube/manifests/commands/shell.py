"""Parses a shell's line, as far as is needed to find one command in it: its words, their parts and positions.

Nothing is run. Parts that only a shell in the pod could know become marks (`variables`). They are the output of
programs, patterns for files, and variables that nobody sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from airflow_elastic.engines.kube.manifests.commands.variables import Scope, mark, marked

_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_REDIRECT = re.compile(r"[0-9]*(?:<<<|<<-?|<>|>>|>\||[<>]&|[<>])|&>>?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_VARIABLE = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-])([^${}`\\'\"]*))?\})"
)
_OPENING = ("if", "while", "until", "for", "{", "function")
_CLOSING = ("fi", "done", "}")
_BETWEEN = ("then", "do", "else", "elif", "!")


class Unreadable(ValueError):
    """A line that cannot be parsed; its text says why."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line.

    Attributes:
        start, end: its position.
        raw: as it is written.
        pieces: its parts in order, each with whether it is in quotes. Parts that begin with `$` or a back tick must be
            filled in, unless they are `literal`.
    """

    start: int
    end: int
    raw: str
    pieces: tuple[tuple[str, bool, bool], ...]

    @property
    def literal(self) -> str | None:
        """The word, if no part of it must be filled in."""
        return "".join(text for text, _, fixed in self.pieces) if all(f for _, _, f in self.pieces) else None


@dataclass(slots=True)
class Command:
    """One simple command of a line.

    Attributes:
        words: its words, without redirections.
        before: the operator before it; empty for the first.
        depth: the number of ifs, loops and parentheses around it.
        redirects: where its redirections begin and end, if any.
        after: the operator behind it; empty for the last.
    """

    before: str
    depth: int
    words: list[Word] = field(default_factory=list)
    redirects: list[tuple[int, int]] = field(default_factory=list)
    after: str = ""

    def assignments(self) -> int:
        """The number of words before the program that set variables for it."""
        count = 0
        while count < len(self.words) and _ASSIGNMENT.match(self.words[count].raw):
            count += 1
        return count


def commands_of(line: str) -> list[Command]:
    """The simple commands of a line in their order, those within others too. Raises Unreadable."""
    found: list[Command] = []
    current, depth = Command("", 0), 0
    for kind, start, end, word in _tokens(line):
        if word is not None and kind == "word":
            plain = word.literal if word.raw == word.literal else None
            if not current.words and plain in ("case", "select"):
                raise Unreadable(f"{plain}")
            if not current.words and plain in (*_OPENING, *_CLOSING, *_BETWEEN):
                depth += (plain in _OPENING) - (plain in _CLOSING)
                current.depth = depth
                continue
            current.words.append(word)
        elif kind == "redirect":
            current.redirects.append((start, end))
        else:
            depth -= line[start:end] == ")"
            if current.words or current.redirects:
                current.after = line[start:end]
                found.append(current)
            depth += line[start:end] == "("
            current = Command(line[start:end], depth)
    if current.words or current.redirects:
        found.append(current)
    return found


def said(command: Command, known: Mapping[str, str | None], scope: Scope) -> list[str]:
    """The words that the shell would pass to a command.

    Args:
        command: the command.
        known: variables that the line has set before it; None if their values are unknown.
        scope: the container's.
    """
    return [text for word in command.words for text in filled(word, known, scope)]


def filled(word: Word, known: Mapping[str, str | None], scope: Scope) -> list[str]:
    """One word as the shell would pass it: several words if a variable without quotes holds several."""
    texts = [""]
    for piece, quoted, fixed in word.pieces:
        if fixed:
            texts[-1] += piece if quoted else _patterns(piece)
            continue
        value = value_of(piece, known, scope)
        if quoted or marked(value) is not None:
            texts[-1] += value
            continue
        first, *others = re.split(r"[ \t\n]+", value) if value.strip() else [""]
        texts[-1] += _patterns(first)
        texts += map(_patterns, others)
    empty = not any(quoted or fixed for _, quoted, fixed in word.pieces)
    return [text for text in texts if text or not empty]


def value_of(piece: str, known: Mapping[str, str | None], scope: Scope) -> str:
    """The value that the shell puts in place of `$NAME`, `${NAME:-word}` or `$((NAME * 2))`."""
    if arithmetic := re.fullmatch(r"\$\(\((.*)\)\)", piece, re.DOTALL):
        return _arithmetic(arithmetic[1], piece, known, scope)
    plain = _VARIABLE.fullmatch(piece)
    if plain is None:
        return mark(piece)
    name, operator, otherwise = plain[1] or plain[2], plain[3], plain[4]
    try:
        value = known[name] if name in known else scope.get(name)
    except KeyError:
        return mark(piece)
    if name in known and value is None:
        return mark(piece)
    if operator and (value is None or (value == "" and operator == ":-")):
        return str(otherwise)
    return mark(piece) if value is None else value


def _arithmetic(text: str, piece: str, known: Mapping[str, str | None], scope: Scope) -> str:
    def number(found: re.Match[str]) -> str:
        value = value_of(f"${found[1]}", known, scope)
        return value if value.isdecimal() else "?"

    digits = re.sub(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?", number, text)
    if (
        not re.fullmatch(r"[0-9+*() \t-]{1,200}|[0-9+*/() \t-]{1,200}", digits)
        or "**" in digits
        or "//" in digits
    ):
        return mark(piece)
    try:
        result = eval(digits.replace("/", "//"), {"__builtins__": {}})  # noqa: S307 - digits and + - * / ( ) alone
    except (ArithmeticError, SyntaxError, TypeError):
        return mark(piece)
    return str(result) if isinstance(result, int) and result >= 0 else mark(piece)


def _patterns(text: str) -> str:
    """Text without quotes: only the pod knows the files that a pattern matches, or how it is expanded."""
    return mark(text) if re.search(r"[*?]|\[.*\]|^~|\{.*(,|\.\.).*\}", text) else text


def _tokens(line: str) -> Iterator[tuple[str, int, int, Word | None]]:
    at = 0
    while at < len(line):
        if line[at] in " \t\r":
            at += 1
        elif line.startswith("\\\n", at):
            at += 2
        elif line[at] == "#":
            at = line.find("\n", at) if "\n" in line[at:] else len(line)
        elif redirect := _REDIRECT.match(line, at):
            if redirect[0].endswith(("<<", "<<-")):
                raise Unreadable("a text that begins with <<")
            after = redirect.end()
            while line[after : after + 1] in (" ", "\t"):
                after += 1
            target = _word(line, after)
            if target.end == after:
                raise Unreadable(f"a redirection to nowhere: {line[at:after]}")
            yield "redirect", at, target.end, target
            at = target.end
        elif operator := _OPERATOR.match(line, at):
            yield "operator", at, operator.end(), None
            at = operator.end()
        else:
            word = _word(line, at)
            yield "word", at, word.end, word
            at = word.end


def _word(line: str, start: int) -> Word:
    pieces: list[tuple[str, bool, bool]] = []
    at = start
    while at < len(line) and line[at] not in " \t\r\n;&|()<>":
        if line[at] == "'":
            end = _closing(line, at + 1, "'")
            pieces.append((line[at + 1 : end], True, True))
            at = end + 1
        elif line[at] == '"':
            at = _double(line, at + 1, pieces)
        elif line[at] == "\\":
            if line[at + 1 : at + 2] != "\n":
                pieces.append((line[at + 1 : at + 2], True, True))
            at += 2
        elif line[at] in "$`" and (end := _expansion(line, at)) > at + 1:
            pieces.append((line[at:end], False, False))
            at = end
        else:
            end = at + 1
            while end < len(line) and line[end] not in " \t\r\n;&|()<>'\"\\$`":
                end += 1
            pieces.append((line[at:end], False, True))
            at = end
    return Word(start, at, line[start:at], tuple(pieces))


def _double(line: str, at: int, pieces: list[tuple[str, bool, bool]]) -> int:
    text = ""
    while True:
        if at >= len(line):
            raise Unreadable('a quotation mark " that is never closed')
        if line[at] == '"':
            pieces.append((text, True, True))
            return at + 1
        if line[at] == "\\" and line[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            text += "" if line[at + 1] == "\n" else line[at + 1]
            at += 2
        elif line[at] in "$`" and (end := _expansion(line, at)) > at + 1:
            pieces += [(text, True, True), (line[at:end], True, False)]
            text, at = "", end
        else:
            text += line[at]
            at += 1


def _expansion(line: str, at: int) -> int:
    """The end of a part that begins with `$` or a back tick; the next position if it is only that letter."""
    if line[at] == "`":
        return _closing(line, at + 1, "`") + 1
    if line.startswith("$'", at):
        raise Unreadable("a text in $'…'")
    following = line[at + 1 : at + 2]
    if following == "(":
        return _balanced(line, at + 1, "(", ")")
    if following == "{":
        return _balanced(line, at + 1, "{", "}")
    if found := _NAME.match(line, at + 1):
        return found.end()
    return at + 2 if following and following in "@*#?$!-0123456789" else at + 1


def _closing(line: str, at: int, letter: str) -> int:
    end = line.find(letter, at)
    if end < 0:
        raise Unreadable(f"a quotation mark {letter} that is never closed")
    return end


def _balanced(line: str, at: int, opening: str, closing: str) -> int:
    depth = 0
    while at < len(line):
        if line[at] in "'":
            at = _closing(line, at + 1, "'")
        elif line[at] == "\\":
            at += 1
        elif line[at] == opening:
            depth += 1
        elif line[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise Unreadable(f"a {opening} that is never closed")
