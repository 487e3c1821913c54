"""The scopes around a function in its file, and the statements in each that may have to go with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from airflow_elastic.decorators.script.names import NONE, Names, names_of

#: The function of a task. Airflow calls it with its arguments, so it is no method.
Function = ast.FunctionDef | ast.AsyncFunctionDef

_INSTEAD = "pass it as an argument of the task"


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """A statement that may go with the function.

    Attributes:
        node: the statement; for an import one of its names only.
        names: what it binds, uses and changes.
        whole: the statement in the file.
        refused: why it cannot go, in words; None if nothing speaks against it.
    """

    node: ast.stmt
    names: Names
    whole: ast.stmt
    refused: str | None = None

    @property
    def line(self) -> int:
        """The line in which it begins."""
        return self.whole.lineno

    @property
    def is_star(self) -> bool:
        """Whether it is an `import *`."""
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"


@dataclass(eq=False, slots=True)
class Scope:
    """The statements of a module, or of a function around the function.

    Attributes:
        units: the statements, in the order of the file.
        outer: the scope around it; None for the module.
        function: name of the function; None for the module.
    """

    units: list[Unit] = field(default_factory=list)
    outer: Scope | None = None
    function: str | None = None

    def binding(self, name: str) -> list[Unit]:
        """The statements of this scope that bind a name."""
        return [unit for unit in self.units if name in unit.names.binds]

    def around(self) -> Iterator[Scope]:
        """This scope, then those around it, from the inside out."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


def scopes_around(tree: ast.Module, function: Function) -> Scope:
    """The scope that a function is defined in."""
    scope = Scope()
    around = frozenset(map(id, _around(tree, function)))
    return _fill(scope, tree.body, function, around) or scope


def _around(node: ast.AST, function: Function) -> list[ast.AST]:
    """The nodes around a function, and the function, from the outside in."""
    if node is function:
        return [node]
    for child in ast.iter_child_nodes(node):
        if found := _around(child, function):
            return [node, *found]
    return []


def _fill(scope: Scope, body: list[ast.stmt], function: Function, around: frozenset[int]) -> Scope | None:
    """Add statements to a scope. Returns the scope of the function, if it is another one."""
    inner = None
    for node in body:
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                _refuse(scope, item.optional_vars, node, f"a `with` block gives it its value; {_INSTEAD}")
            inner = _fill(scope, node.body, function, around) or inner
        elif node is function or id(node) not in around:
            scope.units += _units(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = Scope(outer=scope, function=node.name)
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    why = f"it is a parameter of the function {node.name} around it; {_INSTEAD}"
                    _refuse(inside, ast.Name(argument.arg), node, why)
            inner = _fill(inside, node.body, function, around) or inside
        elif isinstance(node, ast.ClassDef):
            inner = _fill(Scope(outer=scope), node.body, function, around)
            if inner is not None and inner.function is None:
                inner = scope  # the names in the body of a class are no names of its functions
        else:
            if isinstance(node, ast.For | ast.AsyncFor):
                _refuse(
                    scope, node.target, node, f"a loop around the function gives it its value; {_INSTEAD}"
                )
            for part in _bodies(node, around):
                inner = _fill(scope, part, function, around) or inner
    return inner


def _bodies(node: ast.stmt, around: frozenset[int]) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement that have run where the function in one of them is defined."""
    blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [one.body for name in ("handlers", "cases") for one in getattr(node, name, [])]
    for block in blocks:
        if any(id(one) in around for one in block):
            if isinstance(node, ast.Try) and block is not node.body:
                yield node.body
            yield block


def _units(node: ast.stmt) -> Iterator[Unit]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            one = ast.copy_location(_only(node, alias), node)
            yield Unit(one, NONE if alias.name == "*" else names_of(one), node)
    elif isinstance(node, ast.If) and is_test_of(node.test, "TYPE_CHECKING") and not node.orelse:
        for one in node.body:
            for unit in _units(one):
                yield Unit(
                    unit.node,
                    unit.names,
                    unit.whole,
                    "it is imported for type checkers only; import it inside the function",
                )
    elif not (isinstance(node, ast.If) and _is_main(node.test)):
        try:
            yield Unit(node, names_of(node), node)
        except SyntaxError as error:
            yield Unit(node, NONE, node, str(error))


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    """The import of one name only."""
    if isinstance(node, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(node.module, [alias], node.level)


def is_test_of(test: ast.expr, name: str) -> bool:
    """Whether an expression is this name, perhaps of a module: `TYPE_CHECKING`, `typing.TYPE_CHECKING`."""
    return (isinstance(test, ast.Name) and test.id == name) or (
        isinstance(test, ast.Attribute) and test.attr == name
    )


def _is_main(test: ast.expr) -> bool:
    """Whether it is `__name__ == "__main__"`, which is false where Airflow reads the file."""
    return isinstance(test, ast.Compare) and is_test_of(test.left, "__name__")


def _refuse(scope: Scope, target: ast.AST | None, node: ast.stmt, why: str) -> None:
    """Note that the names in a target cannot go with the function."""
    names = [one.id for one in ast.walk(target) if isinstance(one, ast.Name)] if target is not None else []
    if names:
        scope.units.append(Unit(node, replace(NONE, binds=frozenset(names)), node, why))
