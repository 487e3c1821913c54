"""Reads a file of YAML or JSON like kubectl, except that a repeated key is an error: kubectl loses one silently."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from airflow_elastic.engines.kube.manifests.scalars import plain_scalar, tagged_scalar
from airflow_elastic.spec.errors import InvalidInput

_PLAIN = "plain"
_MERGE = "<<"
_MOST_VALUES = 50_000


class Document(NamedTuple):
    """One document of a file.

    Attributes:
        value: as JSON has it.
        line: its first line, from 1.
    """

    value: Any
    line: int


def read_documents(path: Path) -> list[Document]:
    """All documents of a file that are not empty.

    Raises:
        InvalidInput: it cannot be read, is no YAML, or has a key twice; with the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}; name a YAML file") from None
    try:
        found = [Document(_Values().of(root, ""), root.start_mark.line + 1) for root in _roots(content)]
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: it is no text, so it cannot be a manifest") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path}: it is no YAML: {_in_one_line(error)}") from None
    except _Refused as error:
        raise InvalidInput(f"{path}: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: it is nested too deeply for a manifest") from None
    return [document for document in found if document.value is not None]


class _Refused(Exception):
    """Something that YAML allows, and a manifest does not."""


class _Loader(yaml.SafeLoader):
    """Does not resolve words without quotes, and allows tabs between words, like kubectl's loader."""

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def _roots(content: bytes) -> Iterator[yaml.Node]:
    loader = _Loader(content)
    try:
        while loader.check_node() and (root := loader.get_node()) is not None:
            yield root
    finally:
        loader.dispose()


class _Values:
    """The values of one document's nodes."""

    def __init__(self) -> None:
        self._within: set[int] = set()
        self._count = 0

    def of(self, node: yaml.Node, path: str) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise _Refused(
                f"it holds more than {_MOST_VALUES} values, anchors counted wherever they are used"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._within:
            raise _Refused(f"line {_line(node)}: {path or 'the document'} contains itself by an anchor")
        self._within.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.of(one, _below(path, i)) for i, one in enumerate(node.value)]
            return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else None
        finally:
            self._within.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        try:
            value = plain_scalar(node.value) if node.tag == _PLAIN else tagged_scalar(node.tag, node.value)
        except ValueError as error:
            raise _Refused(f"line {_line(node)}: {path}: {error}") from None
        if isinstance(value, float) and not math.isfinite(value):
            text = f"given {node.value}; allowed: a finite number, or text in quotes"
            raise _Refused(f"line {_line(node)}: {path}: {text}")
        return value

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == _PLAIN and key_node.value == _MERGE:
                for one in self._merged(value_node, path):
                    merged = {**one, **merged}
                    if taken := sorted(own.keys() & one.keys()):
                        text = f"{_below(path, taken[0])} is given before `<<`, which kubectl lets win; put `<<` first"
                        raise _Refused(f"line {_line(key_node)}: {text}")
                continue
            key = self._key(key_node, path)
            if key in lines:
                text = f"{_below(path, key)} is given twice, in lines {lines[key]} and {_line(key_node)}"
                raise _Refused(f"{text}; kubectl would take the last without a word: keep one of them")
            lines[key] = _line(key_node)
            own[key] = self.of(value_node, _below(path, key))
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: str) -> list[dict[str, Any]]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.MappingNode) for part in parts):
            raise _Refused(
                f"line {_line(node)}: {_below(path, _MERGE)}: allowed: a mapping, or a list of some"
            )
        return [self.of(part, path) for part in parts]

    def _key(self, node: yaml.Node, path: str) -> str:
        value = self.of(node, path) if isinstance(node, yaml.ScalarNode) else None
        if value is None:
            raise _Refused(
                f"line {_line(node)}: a key in {path or 'the document'} is no word; put it into quotes"
            )
        return str(value).lower() if isinstance(value, bool) else str(value)


def _below(path: str, key: str | int) -> str:
    return f"{path}.{key}".lstrip(".")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _in_one_line(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())
