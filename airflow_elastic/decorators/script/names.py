"""The names that one statement binds, uses and changes."""

from __future__ import annotations

import ast
import copy
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a statement, as seen from the scope that it stands in.

    Attributes:
        binds: names that it gives a value, or whose value it replaces.
        uses: names that it needs a value of, each with the line of its first use.
        hints: the same for names that only evaluated annotations need.
        perhaps: the same for names that a class may take from outside before it binds them: `rate = rate`.
        sets: names of the module that functions in it bind, with `global`.
        changes: names of things that it changes in place: `LIMITS["a"] = 1`, `NAMES.append("b")`.
    """

    binds: frozenset[str]
    uses: Mapping[str, int]
    hints: Mapping[str, int]
    perhaps: Mapping[str, int]
    sets: frozenset[str]
    changes: frozenset[str]


#: The names of a statement that binds or uses nothing that counts.
NONE = Names(frozenset(), {}, {}, {}, frozenset(), frozenset())


@lru_cache(maxsize=8192)  # by the node: a file with several tasks is read once
def names_of(node: ast.stmt) -> Names:
    """The names of a statement. Raises SyntaxError if it means nothing outside its function, as `nonlocal` does."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        whole = isinstance(node, ast.ImportFrom)
        names = (
            alias.asname or (alias.name if whole else alias.name.partition(".")[0]) for alias in node.names
        )
        return replace(NONE, binds=frozenset(names))
    bare = _WithoutHints()
    plain = bare.visit(copy.deepcopy(node))
    table = symtable.symtable(ast.unparse(ast.fix_missing_locations(plain)), "<statement>", "exec")
    binds = {
        one.get_name()
        for one in table.get_symbols()
        if one.is_assigned() or one.is_imported() or one.is_namespace()
    }
    uses = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    perhaps, sets = set(), set()
    for inner in _below(table):
        for one in inner.get_symbols():
            if inner.get_type() == "class" and one.is_assigned() and one.is_referenced():
                perhaps.add(one.get_name())
            if one.is_global():
                uses.add(one.get_name())
            if one.is_declared_global() and one.is_assigned():
                sets.add(one.get_name())
    lines = _lines(node)
    return Names(
        frozenset(binds),
        {name: lines.get(name, node.lineno) for name in sorted(uses)},
        {name: line for name, line in bare.found.items() if name not in uses},
        {name: lines.get(name, node.lineno) for name in sorted(perhaps - uses)},
        frozenset(sets),
        frozenset(_changed(node)),
    )


def _below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _below(child)


def _lines(node: ast.AST) -> dict[str, int]:
    """The line in which each name first stands."""
    found: dict[str, int] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found[one.id] = min(one.lineno, found.get(one.id, one.lineno))
    return found


def _changed(node: ast.stmt) -> Iterator[str]:
    """The names whose values a statement of this scope changes in place."""
    for one in _of_this_scope(node):
        targets: list[ast.expr] = []
        if isinstance(one, ast.Assign | ast.Delete):
            targets = list(one.targets)
        elif isinstance(one, ast.AugAssign | ast.AnnAssign):
            targets = [one.target]
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            targets = [one.value.func]
        for target in targets:
            inside = isinstance(target, ast.Attribute | ast.Subscript)
            if inside and (name := root(target)) is not None:
                yield name


def _of_this_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and those below it that run with it, and not in a function."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _of_this_scope(child)


def root(node: ast.expr) -> str | None:
    """The first name of `name.part["key"].other`; None if the expression begins with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class _WithoutHints(ast.NodeTransformer):
    """Takes out the annotations, and collects the names in those that Python evaluates."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self._in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Take out the annotation of what it returns."""
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Take out the annotation of what it returns."""
        return self._function(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Take out the annotation of a parameter."""
        self._note(node.annotation)
        node.annotation = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Python evaluates the annotations in the body of a class."""
        before, self._in_function = self._in_function, False
        self.generic_visit(node)
        self._in_function = before
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Turn it into a plain assignment, which binds the same name."""
        if not self._in_function:
            self._note(node.annotation)
        self.visit(node.target)
        value = self.visit(node.value) if node.value is not None else None
        if value is None and not isinstance(node.target, ast.Name):
            return ast.copy_location(ast.Expr(node.target), node)
        return ast.copy_location(ast.Assign([node.target], value or ast.Constant(None)), node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._note(node.returns)
        node.returns = None
        node.args = self.visit(node.args)
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        before, self._in_function = self._in_function, True
        node.body = [self.visit(one) for one in node.body]
        self._in_function = before
        return node

    def _note(self, annotation: ast.expr | None) -> None:
        for one in ast.walk(annotation) if annotation is not None else ():
            if isinstance(one, ast.Name):
                self.found.setdefault(one.id, one.lineno)
