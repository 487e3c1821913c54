"""The script of a task's function does what the function does: both are run, for random files and for hard cases."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.decorators.script.extract import Script, _extracted

HEAD = "from dagtools import DAG, dag, task\nimport json, math as m\nfrom dataclasses import dataclass\n"
MARK = "@task.elastic_train"


class Dag(contextlib.nullcontext[None]):
    """Stands for a DAG, which the function has no use for."""

    def note(self, value: object) -> None:
        """Take a value, as DAG files do."""


@contextlib.contextmanager
def tools() -> Iterator[list[Callable[..., Any]]]:
    """A module that stands for Airflow. Yields the functions that its decorator gets."""
    found: list[Callable[..., Any]] = []
    module = types.ModuleType("dagtools")

    def elastic_train(**_: Any) -> Callable[..., Any]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            found.append(function)
            return function

        return keep

    module.__dict__.update(
        DAG=lambda *_, **__: Dag(), dag=lambda f: f, task=types.SimpleNamespace(elastic_train=elastic_train)
    )
    with mock.patch.dict(sys.modules, {"dagtools": module}):
        yield found


def printed(run: Callable[[], Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run()
    return out.getvalue()


def script_of(text: str, number: int = 0) -> Script:
    """The script of one of the tasks in a file."""
    lines = [n for n, line in enumerate(text.split("\n"), 1) if line.strip().startswith(MARK)]
    name = text.split("\n")[lines[number] :][0].split("def ", 1)[1].partition("(")[0]
    made = _extracted(text, "/nowhere/a_dag.py", name, lines[number], False)
    assert made is not None
    return made


def outcomes(text: str, **arguments: Any) -> tuple[str, str]:
    """What the function prints, and what its script does."""
    with tools() as found:
        main: dict[str, Any] = {"__name__": "__main__"}
        with mock.patch.dict(sys.modules, {"a_dag": types.ModuleType("a_dag")}):
            home = sys.modules["a_dag"].__dict__
            exec(compile(text, "a_dag.py", "exec", dont_inherit=True), home)
            expected = printed(lambda: found[0](**arguments))
    script = script_of(text)
    code = compile(script.text, script.file, "exec", dont_inherit=True)
    words = [script.file, *([json.dumps(arguments)] if script.takes_arguments else [])]
    with mock.patch.dict(sys.modules, {"__main__": types.ModuleType("__main__")}):
        main = sys.modules["__main__"].__dict__
        with mock.patch.object(sys, "argv", words):
            return expected, printed(lambda: exec(code, main))


# -- random files ----------------------------------------------------------------------------------------------------

#: How a file binds a name `x`: the statement with a value `V`, and how the function then uses the name.
KINDS = {
    "constant": ("x = V", "x"),
    "typed": ("x: int = V", "x"),
    "pair": ("x, x_ = V, 2", "(x + x_)"),
    "list": ("x = [V, 1]\nx.append(V)\nx[0] += 1", "sum(x)"),
    "mapping": ("x = {'a': V}\nx['b'] = 2\nfor key in ('c', 'd'):\n    x[key] = len(x)", "sum(x.values())"),
    "text": ('x = f"""\n  {V}\n a"""', "len(x)"),
    "function": ("def x(a, b=V):\n    return a + b", "x(1)"),
    "doc": ('def x(a):\n    """Two\n  lines."""\n    return a + V  # end', "x(1)"),
    "lambda": ("x = lambda a: a * V", "x(2)"),
    "inner": (
        "def x():\n    y = V\n    def z():\n        nonlocal y\n        y += 1\n        return y\n    return z()",
        "x()",
    ),
    "global": ("x = 0\ndef up_x():\n    global x\n    x = V\n    return x", "up_x()"),
    "setter": ("def up_x():\n    global x\n    x = V\n    return x", "up_x()"),
    "comprehension": ("def x():\n    return sum(a * V for a in range(3) if a != V)", "x()"),
    "class": (
        "class x:\n    rate = V\n    twice = rate * 2\n    def get(self):\n        return self.rate",
        "x().get()",
    ),
    "shadow": ("x = V\nclass x_c:\n    x = x", "x_c.x"),
    "dataclass": ("@dataclass(frozen=True)\nclass x:\n    a: int = V\n    b: 'str' = ''", "x().a"),
    "child": (
        "class x_base:\n    a = V\nclass x(x_base):\n    def get(self):\n        return super().a",
        "x().get()",
    ),
    "decorated": ("def x_d(f):\n    return lambda: f() + V\n@x_d\ndef x():\n    return 1", "x()"),
    "attribute": ("def x():\n    return x.calls\nx.calls = V", "x()"),
    "import": ("from math import (\n    floor as x, ceil,\n)", "x(2.5)"),
    "module": ("import os.path, math as x", "x.floor(1.5)"),
    "attempt": ("try:\n    import no_such_module as x\nexcept ImportError:\n    x = V", "x"),
    "branch": ("if V > 5:\n    x = 1\nelse:\n    x = V", "x"),
    "twice": ("x = V\nx = x + 1", "x"),
    "same line": ("x = V; x_2 = x * 2", "x_2"),
    "match": ("match V:\n    case 1:\n        x = 1\n    case x_m:\n        x = x_m", "x"),
}


def indented(text: str, by: int) -> str:
    """The text with an indentation, but not inside strings of several lines: Python would not have it there either."""
    inside, lines = False, []
    for line in text.split("\n"):
        lines.append(line if inside or not line else " " * by + line)
        inside ^= line.count('"""') % 2 == 1
    return "\n".join(lines)


@st.composite
def files(draw: st.DrawFn) -> str:
    """A DAG file with a task, and statements of all kinds that need each other."""
    parts, values = [HEAD], ["1", "3"]
    if draw(st.booleans()):
        parts.append("seen = 0\ndef forget():\n    global seen\n    seen = DAG('x')\n")
    place = draw(st.sampled_from(("module", "with", "function")))
    if draw(st.booleans()):
        parts.insert(0, "from __future__ import annotations\n")
    later = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=7))):
        inside = place != "module" and (later or draw(st.booleans()))
        if kind == "shadow" and inside and place == "function":  # Python looks for it in the module only
            kind = "constant"
        statement, use = KINDS[kind]
        value = draw(st.sampled_from(values))
        name = f"n{number}"
        for word in ("x_base", "x_c", "x_d", "x_m", "x_2", "x_", "up_x", "x"):
            spare = f"{name}{word.replace('x', '')}"
            statement, use = (_renamed(one, word, spare) for one in (statement, use))
        statement = statement.replace("V", value)
        values.append(use)
        (later if inside else parts).append(statement)
        if draw(st.booleans()):
            (later if inside else parts).append(f"DAG('x').note({value})\n")
    used = draw(st.lists(st.sampled_from(values), max_size=4))
    task = [
        f"{MARK}(workers=2)",
        "def train(given: int, more: list[int] | None = None, *, last="
        + draw(st.sampled_from(values))
        + "):",
        '    """Train',
        '  the model."""',
        *(f"    print({use}, m.floor(given + 0.5))" for use in used),
        "    def inner(a: int = given) -> int:",
        f"        return a + {draw(st.sampled_from(values))}",
        "    global seen",
        "    seen = inner()",
        "    print(f'{seen} {json.dumps(more)}', last)",
    ]
    at_end = ["def afterwards():", "    return given", "DAG('y').note(train)"]
    body = "\n".join([*later, "\n".join(task), *at_end])
    if place == "with":
        parts.append("with DAG('d') as d:\n" + indented(body, 4))
    elif place == "function":
        parts.append("@dag\ndef flow(name='x'):\n" + indented(body, 2) + "\nflow()")
    else:
        parts.append(body)
    return "\n".join(parts) + "\n"


def _renamed(text: str, word: str, name: str) -> str:
    return re.sub(rf"\b{word}\b", name, text)


@settings(max_examples=150, deadline=None)
@given(files(), st.integers(-5, 5), st.none() | st.lists(st.integers(), max_size=2))
def test_a_script_does_what_its_function_does(text: str, number: int, more: list[int] | None) -> None:
    expected, shipped = outcomes(text, given=number, more=more)
    assert shipped == expected


@settings(max_examples=50, deadline=None)
@given(files())
def test_every_statement_keeps_its_line_and_nothing_of_the_dag_goes_along(text: str) -> None:
    script = script_of(text)
    lines = text.split("\n")
    number = next(n for n, line in enumerate(script.text.split("\n")) if line.startswith("def train("))
    assert lines[number].strip() == script.text.split("\n")[number]
    assert "DAG(" not in script.text
    assert "dagtools" not in script.text
    assert script.file == "train.task.py"
