"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable

from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.testing.simulator.policies.api import Policy
from airflow_elastic.testing.simulator.policies.dlrover import Dlrover
from airflow_elastic.testing.simulator.policies.elastic import Elastic
from airflow_elastic.testing.simulator.policies.hpa import Hpa
from airflow_elastic.testing.simulator.policies.pollux import Pollux
from airflow_elastic.testing.simulator.policies.static import Static

_MADE: dict[str, Callable[[], Policy]] = {
    "static-least": lambda: Static("least"),
    "static-requested": lambda: Static("requested"),
    "static-most": lambda: Static("most"),
    "hpa-cpu": Hpa,
    "dlrover": Dlrover,
    "pollux": Pollux,
    "elastic-alone": lambda: Elastic(shared=False),
    "elastic-shared": lambda: Elastic(shared=True),
}

#: All names, in the order in which tables show them.
NAMES = tuple(_MADE)


def policy(name: str) -> Policy:
    """A new policy of this name. Raises InvalidInput if there is none."""
    if name not in _MADE:
        raise InvalidInput(f"policy: given {name!r}; allowed: {', '.join(NAMES)}")
    return _MADE[name]()
