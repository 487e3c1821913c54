"""What tests cost: `pytest -p tests.support.cpu` prints the CPU seconds of each, with all that it has started.

Seconds by the clock say little on a busy machine. Where this machine's control groups can be written (as root on Linux)
processes that left their parent are counted too; elsewhere only children that have ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_GROUPS = Path("/sys/fs/cgroup/cpuacct")


class Cpu:
    """Counts while tests run."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.group: Path | None = _GROUPS / f"tests-{os.getpid()}"
        try:
            self.group.mkdir()
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self.group = None

    def now(self) -> float:
        if self.group is not None:
            return int((self.group / "cpuacct.usage").read_text()) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """With its set-up: what makes something for many tests is counted with the first of them."""
        before = self.now()
        try:
            return (yield)
        finally:
            self.spent[item.nodeid] += self.now() - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        modules: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self.spent.items():
            modules[test.partition("::")[0]] += seconds
        for name, seconds in sorted((*self.spent.items(), *modules.items()), key=lambda one: -one[1]):
            if seconds >= 0.5:
                terminalreporter.write_line(f"{seconds:8.1f} {name}")
        terminalreporter.write_line(f"{sum(modules.values()):8.1f} all")

    def pytest_unconfigure(self) -> None:
        if self.group is not None:
            (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
            for left in (
                (self.group / "cgroup.procs").read_text().split()
            ):  # the group goes when nobody is in it
                try:
                    (_GROUPS / "cgroup.procs").write_text(left)
                except OSError:
                    continue
            with contextlib.suppress(OSError):
                self.group.rmdir()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Cpu())
