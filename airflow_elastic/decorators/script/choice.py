"""Which statements of a file a function needs, and why it cannot have some of them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_elastic.decorators.script.foreign import module_problem, value_problem
from airflow_elastic.decorators.script.names import root
from airflow_elastic.decorators.script.scopes import Scope, Unit, is_test_of

#: Names that every module has. `__file__` is not among them: it is another one on workers.
_GIVEN = frozenset({*dir(builtins), "__name__", "__doc__", "__builtins__"})

_TWICE = "the file has two things of this name, in different functions: rename one of them"

#: Most statements with a logger are about the file, and not about the function.
_LOGGERS = ("getLogger", "get_logger")


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that cannot go with the function.

    Attributes:
        line: where the function uses it, or uses what needs it.
        path: what needs it: the function's own helpers, from the function on, then the name.
        why: why not, in words, with what to do.
    """

    line: int
    path: tuple[str, ...]
    why: str


class Choice:
    """The statements that a function needs.

    Attributes:
        units: the statements, each with the scope that it stands in.
        refused: what cannot go with the function, by name.
        defers: whether annotations have names that cannot go with it, so that they must not be evaluated.

    Args:
        file: the path of the DAG file; None if workers have modules from beside it.
        function: the function.
        scope: the scope that it is defined in.
    """

    def __init__(self, file: str | None, function: Unit, scope: Scope) -> None:
        self._file, self._function = file, function
        self.units: dict[Unit, Scope] = {}
        self.refused: dict[str, Refused] = {}
        self.defers = False
        self._homes: dict[str, Scope] = {}
        self._add(function, scope, None, ())
        while self._add_changes() or self._add_hints():
            pass

    def _add(self, unit: Unit, scope: Scope, line: int | None, path: tuple[str, ...]) -> None:
        """Choose a statement and all that it needs."""
        if unit in self.units:
            return
        self.units[unit] = scope
        if unit.refused is not None:
            self._refuse(path[-1], line or unit.line, path, unit.refused)
            return
        for name, at, why in _problems(unit, scope, self._file):
            self._refuse(f"{path}{name}", line or at, path if _imports(unit) else (*path, name), why)
        for name in unit.names.binds:
            if self._homes.setdefault(name, scope) is not scope:
                self._refuse(name, line or unit.line, (*path, name), _TWICE)
        known = {name: at for name, at in unit.names.perhaps.items() if _home(name, scope) is not None}
        for name, used in {**unit.names.uses, **known}.items():
            self._need(name, line or used, scope, (*path, name))

    def _need(self, name: str, line: int, scope: Scope, path: tuple[str, ...]) -> None:
        """Choose what binds a name."""
        home = _home(name, scope)
        setters = [(unit, one) for one in scope.around() for unit in one.units if name in unit.names.sets]
        if home is None and setters:
            for unit, one in setters:
                if unit.node is not self._function.whole:
                    self._add(unit, one, line, path)
        elif home is not None:
            for unit in home.binding(name):
                if unit.node is self._function.whole:
                    self._refuse(name, line, path, "it is the task itself: call a helper function instead")
                else:
                    self._add(unit, home, line, path)
        elif name == "__file__":
            why = "workers have the script at another path: pass the path of what you need as an argument"
            self._refuse(name, line, path, why)
        elif name not in _GIVEN:
            stars = (unit.is_star for home in scope.around() for unit in home.units)
            why = "nothing in the file gives it a value: import it, define it, or pass it as an argument"
            if any(stars):
                why = "only an `import *` can give it a value: import it by its name"
            self._refuse(name, line, path, why)

    def _refuse(self, name: str, line: int, path: tuple[str, ...], why: str) -> None:
        self.refused.setdefault(name, Refused(line, path, why))

    def _add_changes(self) -> bool:
        """Choose the statements that change something chosen in place. Returns whether there was one."""
        for scope in {id(one): one for one in self.units.values()}.values():
            ours = [unit for unit, home in self.units.items() if home is scope and not _imports(unit)]
            bound = {name: unit for unit in ours for name in unit.names.binds}
            for unit in scope.units:
                if unit in self.units or unit.node is self._function.whole:
                    continue
                for name in unit.names.changes & bound.keys():
                    if self._is_of_file(unit, bound[name], scope):
                        continue
                    self._add(unit, scope, None, (name,))
                    return True
        return False

    def _is_of_file(self, unit: Unit, bound: Unit, scope: Scope) -> bool:
        """Whether a statement logs something about the file, and cannot go with the function."""
        calls = (one.func for one in ast.walk(bound.node) if isinstance(one, ast.Call))
        names = {one.attr if isinstance(one, ast.Attribute) else root(one) for one in calls}
        if names.isdisjoint(_LOGGERS):
            return False
        return self._tried(dict.fromkeys(unit.names.uses, unit.line), scope) is None

    def _add_hints(self) -> bool:
        """Choose what annotations need, where it can go with the function. Returns whether there is more to choose."""
        more = False
        for unit, scope in [*self.units.items()]:
            for name, line in unit.names.hints.items():
                tried = self._tried({name: line}, scope)
                if tried is None:
                    self.defers = True
                else:
                    more = more or len(tried.units) > len(self.units)
                    self.units, self._homes = tried.units, tried._homes
        return more

    def _tried(self, names: Mapping[str, int], scope: Scope) -> Choice | None:
        """The choice with these names; None if one of them cannot go with the function."""
        copy = object.__new__(Choice)
        copy._file, copy._function, copy.defers = self._file, self._function, self.defers
        copy.units, copy.refused, copy._homes = {**self.units}, {**self.refused}, {**self._homes}
        for name, line in names.items():
            copy._need(name, line, scope, (name,))
        known = copy.refused.keys() == self.refused.keys() and self.refused.keys().isdisjoint(names)
        return copy if known else None


def _problems(unit: Unit, scope: Scope, file: str | None) -> Iterator[tuple[str, int, str]]:
    """What workers cannot run in a statement as it is here: the name, its line, and why not, in words."""
    for one in _run_there(unit.node):
        if isinstance(one, ast.Import):
            modules = [(alias, alias.name) for alias in one.names]
        elif isinstance(one, ast.ImportFrom):
            modules = [(alias, f"{one.module or ''}.{alias.name}") for alias in one.names]
        else:
            continue
        for alias, module in modules:
            level = one.level if isinstance(one, ast.ImportFrom) else 0
            if (why := module_problem(module, level, file)) is not None:
                yield alias.asname or alias.name, one.lineno, why
    if (found := value_problem(unit.node, _modules(scope))) is not None:
        yield found[0], unit.line, found[1]


def _run_there(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and the nodes below it, without those that only type checkers read."""
    yield node
    left_out = node.body if isinstance(node, ast.If) and is_test_of(node.test, "TYPE_CHECKING") else []
    for child in ast.iter_child_nodes(node):
        if child not in left_out:
            yield from _run_there(child)


def _modules(scope: Scope) -> dict[str, str]:
    """What imported names stand for: `{"np": "numpy", "environ": "os.environ"}`."""
    found: dict[str, str] = {}
    for home in scope.around():
        for unit in home.units:
            if isinstance(unit.node, ast.Import):
                alias = unit.node.names[0]
                found.setdefault(
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
            elif isinstance(unit.node, ast.ImportFrom):
                alias = unit.node.names[0]
                found.setdefault(alias.asname or alias.name, f"{unit.node.module}.{alias.name}")
    return found


def _home(name: str, scope: Scope) -> Scope | None:
    """The innermost scope that binds a name."""
    return next((home for home in scope.around() if home.binding(name)), None)


def _imports(unit: Unit) -> bool:
    return isinstance(unit.node, ast.Import | ast.ImportFrom)
