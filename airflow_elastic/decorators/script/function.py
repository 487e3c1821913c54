"""The function of a task in its file: where it is, whether its body is the script, and what speaks against that."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_elastic.decorators.script.scopes import Function

#: Names of the decorators that make a task of a function.
OURS = ("elastic_train", "elastic_train_task", "elastic_evaluate", "elastic_evaluate_task")

#: Modules that only a training script has a use for.
_TRAINING = ("airflow_elastic.runtime", "airflow_elastic.frameworks")


def find(tree: ast.Module, name: str, line: int) -> Function | None:
    """The function of this name that begins, with its decorators, in this line."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
            continue
        if min([node.lineno, *(one.lineno for one in node.decorator_list)]) == line:
            return node
    return None


def is_script(function: Function) -> bool:
    """Whether its body is the script: it returns no value."""
    return not any(isinstance(one, ast.Return) and _has_value(one) for one in _own(function))


def trains_in(function: Function, tree: ast.Module) -> int | None:
    """The line in which a function uses what only a training script imports; None if it does not."""
    names = {name for node in tree.body for name in _of_training(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names:
            return node.lineno
        if any(_of_training(node)):
            return int(getattr(node, "lineno", function.lineno))
    return None


def _of_training(node: ast.AST) -> Iterator[str]:
    """The names that an import binds to what only training scripts use."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.startswith(_TRAINING):
                yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if f"{node.module}.{alias.name}".startswith(_TRAINING):
                yield alias.asname or alias.name


def undecorated(function: Function, *, wrapped: bool) -> Function:
    """The function without the decorator that makes it a task.

    Args:
        function: the function.
        wrapped: whether other decorators, which stand below that one, have wrapped it. They stay.
    """
    bare = copy.copy(function)
    ours = [i for i, one in enumerate(function.decorator_list) if _name(one) in OURS]
    bare.decorator_list = function.decorator_list[ours[-1] + 1 :] if wrapped and ours else []
    return bare


def problems_of(function: Function, *, wrapped: bool) -> list[tuple[int, str]]:
    """Why its body cannot be a script: the line, and why in words."""
    found: list[tuple[int, str]] = []
    if isinstance(function, ast.AsyncFunctionDef):
        found.append((function.lineno, "is async: use a plain `def`, and asyncio.run inside it"))
    for one in _own(function):
        if isinstance(one, ast.Yield | ast.YieldFrom):
            found.append((one.lineno, "yields values, so calling it does nothing: put the loop into it"))
            break
    arguments = function.args
    for argument in (*arguments.posonlyargs, *filter(None, [arguments.vararg])):
        why = f"cannot take {argument.arg} by its name, as it gets all arguments: make it a plain parameter"
        found.append((argument.lineno, why))
    for argument in (*arguments.args, *arguments.kwonlyargs):
        if argument.arg in KNOWN_CONTEXT_KEYS:
            why = (
                f"has the parameter {argument.arg}, which Airflow fills in on its own machine: give the parameter "
                f"another name, and pass a template such as '{{{{ {argument.arg} }}}}'"
            )
            found.append((argument.lineno, why))
    if wrapped and not any(_name(one) in OURS for one in function.decorator_list):
        why = (
            f"has other decorators, and none of them is called {' or '.join(OURS[::2])}: use it by this name"
        )
        found.append((function.lineno, why))
    return found


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own(child)


def _has_value(node: ast.Return) -> bool:
    return node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None)


def _name(decorator: ast.expr) -> str | None:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
