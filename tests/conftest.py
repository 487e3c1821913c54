"""For all tests."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import settings

from tests.support.groups import group_of
from tests.support.rotating import VARIABLE, rotate

# A busy machine is no bug: no example has a time limit. What fails is printed so that it can be run again.
settings.register_profile("ours", deadline=None, print_blob=True)
settings.load_profile("ours")


class Teller:
    """Says at once what fails: a run of many minutes may be ended before it tells of its failures."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else report.longreprtext
            self.terminal.write_line(f"\n{report.when} of {report.nodeid}: {why[:1000]}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-siblings", action="store_true", help="run all siblings, whose turn it is or not")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Several processes are to mean the same day, also about midnight.
    os.environ.setdefault(VARIABLE, str(datetime.now(UTC).date()))
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter):
        config.pluginmanager.register(Teller(terminal))


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("all_siblings"):
        return "siblings: all"
    return f"siblings: those of {_day()} ({VARIABLE} is another day; --all-siblings: all)"


def _day() -> date:
    return date.fromisoformat(os.environ[VARIABLE])


@pytest.hookimpl(trylast=True)  # of those that are left to run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("all_siblings"):
        rotate(items, _day())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes share the tests (`make test`), each group stays in one of them."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # The dear ones come first, which is the order of folders: small modules are left to even out the end.
    config.option.loadscopereorder = False
    return ByGroup(config, log)
