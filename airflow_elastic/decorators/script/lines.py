"""The text of single statements of a file, and a new file of them in which each keeps the number of its line."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable


class Lines:
    """The lines of a file.

    Args:
        text: of the file.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._inside = _inside_strings(text)

    def of(self, node: ast.stmt) -> tuple[int, str]:
        """The number of the first line of a statement, and its text without its indentation."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        last = node.end_lineno or first
        found = self._lines[first - 1 : last]
        column = node.col_offset if first == node.lineno else None
        end = len(found[-1].encode()[: node.end_col_offset].decode())
        rest = found[-1][end:].strip()
        if rest and not rest.startswith("#"):  # another statement follows in this line
            found[-1] = found[-1][:end]
        before = found[0].encode()[:column].decode() if column is not None else found[0].partition("@")[0]
        if before.strip():  # another statement stands before it in this line
            found[0] = found[0][len(before) :]
            before = self._lines[first - 1][: len(before) - len(before.lstrip())]
        numbered = enumerate(found, first)
        return first, "\n".join(
            line if number in self._inside else _dedented(line, before) for number, line in numbered
        )


def in_their_lines(head: Iterable[str], parts: Iterable[tuple[int, str]]) -> list[str]:
    """The lines of a file with these parts, each in the line that it is given for, or in the next free one."""
    lines = list(head)
    ends = 0  # the line of the former part's end, if that is its place
    for number, text in parts:
        first, *others = text.split("\n")
        if number == ends:  # they share a line in the file too
            lines[-1] += f"; {first}"
        else:
            lines += [""] * (number - 1 - len(lines))
            lines.append(first)
        lines += others
        ends = number + len(others)
        ends = ends if ends == len(lines) else 0
    return lines


def _dedented(line: str, indentation: str) -> str:
    if line.startswith(indentation):
        return line[len(indentation) :]
    return line.lstrip() if len(line) - len(line.lstrip()) < len(indentation) else line


def _inside_strings(text: str) -> frozenset[int]:
    """The numbers of the lines that begin inside a string: their indentation is part of its value."""
    found: set[int] = set()
    opened: list[int] = []
    start, end = (getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END"))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            found.update(range(token.start[0] + 1, token.end[0] + 1))
        elif token.type == start:
            opened.append(token.start[0])
        elif token.type == end:
            found.update(range(opened.pop() + 1, token.end[0] + 1))
    return frozenset(found)
