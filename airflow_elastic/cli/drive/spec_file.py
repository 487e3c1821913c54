"""Read a specification from a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import yaml

from airflow_elastic.engines.kube.manifests import find_object, left_out, run_of, title
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.run import RunSpec

#: Every object of Kubernetes has this in YAML or JSON, and no specification has it.
_MANIFEST = re.compile(r"""^(?:\ufeff|---)?[\s{]*["']?apiVersion["']?\s*:""", re.MULTILINE)
#: Rules that have defaults for all of their fields.
_RULES = ("capacity", "worth")

_EXAMPLE = "a mapping such as `command: [train.py]`"


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice; YAML would take the last one without an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Check the keys before others are merged into the mapping."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.ScalarNode] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    text = f"the key {key.value!r} is given a second time, first in line {first.start_mark.line + 1}"
                    raise yaml.MarkedYAMLError(None, None, text, key.start_mark)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a value. `18:00` stays text; YAML 1.1 would read 1080, a number of base 60."""
        tag: Any = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        return "tag:yaml.org,2002:str" if number and implicit[0] and ":" in value else tag


# A date stays text: a specification is sent as JSON, which has no dates.
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_plain(path: str, which: str | None = None) -> dict[str, Any]:
    """The plain values of a specification or of a Kubernetes manifest, not yet checked.

    Args:
        path: path of the file.
        which: the object of a manifest with several: `Job/fit`, `job` or `/fit`. Default: the only one.

    Raises:
        InvalidInput: the file cannot be read, is not YAML or not a mapping, or its manifest cannot become a run.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}; name a YAML file") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: it is no text, so it cannot be a YAML specification") from None
    if _MANIFEST.search(text):
        return _of_manifest(path, which)
    if which is not None:
        raise InvalidInput(
            f"--object: given {which}; allowed: with a manifest of Kubernetes, and {path} is none"
        )
    try:
        plain = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path}: it is no YAML: {_in_one_line(error)}") from None
    except ValueError as error:  # e.g. thousands of digits, or a month 13
        raise InvalidInput(f"{path}: it has a number or a date that cannot be read: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: it is nested too deeply for a specification") from None
    if plain is None:
        raise InvalidInput(f"{path}: it is empty; wanted is {_EXAMPLE}")
    if not isinstance(plain, dict):
        raise InvalidInput(f"{path}: it holds {_kind(plain)}; wanted is {_EXAMPLE}")
    _refuse_empty_rule(path, plain)
    return plain


def _refuse_empty_rule(path: str, plain: dict[str, Any]) -> None:
    """Refuse a rule without a value, as `capacity:`. To YAML that is null, and the run would have no such rule."""
    scaling = plain.get("scaling")
    policy = scaling.get("policy") if isinstance(scaling, dict) else None
    for name, value in policy.items() if isinstance(policy, dict) else ():
        if value is None:
            what = f"write `{name}: {{}}` for its defaults" if name in _RULES else "write a value"
            raise InvalidInput(f"{path}: scaling.policy.{name}: it is empty; {what}, or leave it out")


def _of_manifest(path: str, which: str | None) -> dict[str, Any]:
    kind, _, name = (which or "").partition("/")
    found = find_object(path, kind or None, name or None)
    try:
        spec = run_of(found)
    except SpecError as error:
        raise in_file(error, path) from None
    told = f"read as a manifest, of {title(found.body)}"
    click.echo(f"{path}: {'; '.join(filter(None, (told, left_out(found))))}", err=True)
    return spec.to_dict()


def build(plain: dict[str, Any], path: str | None = None) -> RunSpec:
    """The specification of plain values that were read from `path`. Raises SpecError."""
    try:
        return RunSpec.from_dict(plain)
    except SpecError as error:
        raise in_file(error, path) from None


def in_file(error: SpecError, path: str | None) -> SpecError:
    """The same problems with the path of their file, except problems of options."""
    if path is None:
        return error
    options = [problem.path.startswith("--") for problem in error.problems]
    first = options.index(False) if False in options else None
    return SpecError(*(p.at(f"{path}: {p.path}") if i == first else p for i, p in enumerate(error.problems)))


def _in_one_line(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"a single value, {str(value)[:40]!r}"
