"""From a function in a DAG file to the script that workers run."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from airflow_elastic.decorators.script.choice import Choice
from airflow_elastic.decorators.script.function import find, is_script, problems_of, trains_in, undecorated
from airflow_elastic.decorators.script.lines import Lines, in_their_lines
from airflow_elastic.decorators.script.names import names_of
from airflow_elastic.decorators.script.scopes import Function, Unit, scopes_around
from airflow_elastic.spec.errors import ABSENT, Problem, SpecError
from airflow_elastic.spec.validation import MOST_SCRIPT_BYTES

_FUTURE = "from __future__ import {}"

_RETURNS = (
    "trains here and returns a value: Airflow would call it for a command. Return nothing, so that workers run it; "
    "give results to `run.finish`"
)

_NONLOCAL = "changes a variable of the function around it with `nonlocal`: make it a variable of its own"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that workers can run.

    Attributes:
        file: the name for its file. It has two dots, so that no `import` of the script finds it.
        text: its text. Each statement has the number of its line in the DAG file, so that tracebacks fit.
        takes_arguments: whether it reads the arguments of the function, as one JSON object, from its first argument.
    """

    file: str
    text: str
    takes_arguments: bool


def script_of(function: Callable[..., Any], *, has_modules: bool = False) -> Script | None:
    """The script in a function; None for a function that returns the command to train with.

    Args:
        function: the function of a task, as the decorator gets it.
        has_modules: whether workers have the modules beside the DAG file.

    Raises:
        SpecError: it cannot become a script; the text has each reason, with the file, the line and what to do.
    """
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return None
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, plain.__globals__)
    if not lines:
        allowed = "there is no file with the text of this function: define it with `def` in the DAG file"
        raise SpecError(Problem(code.co_name, ABSENT, allowed))
    text, wrapped = "".join(lines), plain is not function
    return _extracted(text, code.co_filename, code.co_name, code.co_firstlineno, wrapped, has_modules)


@lru_cache(maxsize=4)
def _parsed(text: str) -> tuple[ast.Module, Lines]:
    return ast.parse(text), Lines(text)


@lru_cache(maxsize=256)
def _extracted(
    text: str, file: str, name: str, line: int, wrapped: bool = False, has_modules: bool = False
) -> Script | None:
    tree, lines = _parsed(text)
    function = find(tree, name, line)
    if function is None:
        raise _refused(file, name, [(line, "is no function of this file: define it there with `def`")])
    if not is_script(function):
        if (trains := trains_in(function, tree)) is not None:
            raise _refused(file, name, [(trains, _RETURNS)])
        return None
    problems = problems_of(function, wrapped=wrapped)
    bare = undecorated(function, wrapped=wrapped)
    try:
        unit = Unit(bare, names_of(bare), function)
    except SyntaxError:
        raise _refused(file, name, [(function.lineno, _NONLOCAL)]) from None
    chosen = Choice(None if has_modules else file, unit, scopes_around(tree, function))
    problems += [
        (one.line, f"uses {', which uses '.join(one.path)}, and this cannot go to workers: {one.why}")
        for one in chosen.refused.values()
    ]
    if problems:
        raise _refused(file, name, problems)
    script = _written(tree, lines, chosen, function, wrapped=wrapped)
    if (size := len(script.text.encode())) > MOST_SCRIPT_BYTES:
        allowed = (
            f"at most {MOST_SCRIPT_BYTES} with all that it uses: install the rest as a package on workers"
        )
        raise SpecError(Problem(f"{PurePath(file).name}:{line}: bytes of {name}", size, allowed))
    return script


def _refused(file: str, name: str, problems: Iterable[tuple[int, str]]) -> SpecError:
    where = PurePath(file).name
    return SpecError(*(Problem(f"{where}:{line}", ABSENT, f"{name} {why}") for line, why in sorted(problems)))


def _written(tree: ast.Module, lines: Lines, chosen: Choice, function: Function, *, wrapped: bool) -> Script:
    """The script of these statements."""
    futures = {
        alias.name: None
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }
    if chosen.defers:
        futures["annotations"] = None
    parts = []
    for whole in sorted({unit.whole for unit in chosen.units}, key=lambda one: (one.lineno, one.col_offset)):
        if isinstance(whole, ast.ImportFrom) and whole.module == "__future__":
            continue
        if whole is function:
            parts.append(lines.of(undecorated(function, wrapped=wrapped)))
            continue
        used = [unit.node for unit in chosen.units if unit.whole is whole]
        part = isinstance(whole, ast.Import | ast.ImportFrom) and len(used) < len(whole.names)
        parts.append((whole.lineno, _import_of(whole, used)) if part else lines.of(whole))
    head = [f"# The function {function.name} of a DAG, in the lines that it has in the file of the DAG."]
    if futures:
        head.append(_FUTURE.format(", ".join(futures)))
    takes = bool(ast.unparse(function.args))
    text = "\n".join([*in_their_lines(head, parts), *_call(function.name, takes_arguments=takes), ""])
    return Script(f"{function.name}.task.py", text, takes)


def _import_of(whole: ast.stmt, used: Iterable[ast.stmt]) -> str:
    """An import of only these names."""
    names = [alias for one in used if isinstance(one, ast.Import | ast.ImportFrom) for alias in one.names]
    if isinstance(whole, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(whole.module, names, whole.level))
    return ast.unparse(ast.Import(names))


def _call(name: str, *, takes_arguments: bool) -> list[str]:
    """The lines that call the function."""
    begin = ["", "", 'if __name__ == "__main__":']
    if not takes_arguments:
        return [*begin, f"    {name}()"]
    imports = ["    import json as _json", "    import sys as _sys", ""]
    return [*begin, *imports, f"    {name}(**_json.loads(_sys.argv[1]))"]
