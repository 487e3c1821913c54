"""Objects whose state is each rank's own: torchdata's StatefulDataLoader, which knows what its rank has been given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.errors import InvalidInput


def per_rank_if_needed(other: Any, ranks: Collectives) -> Any:
    """The same object, or one that saves and restores it on each rank, where its state is that rank's own."""
    torchdata = sys.modules.get("torchdata.stateful_dataloader")  # whoever has such a loader has imported it
    if torchdata is not None and isinstance(other, torchdata.StatefulDataLoader):
        return PerRankState(other, ranks)
    return other


class PerRankState:
    """Has as its state the states that an object has on all ranks.

    Args:
        other: the object, on this rank.
        ranks: this rank among the others.
    """

    def __init__(self, other: Any, ranks: Collectives) -> None:
        self._other, self._ranks = other, ranks

    def state_dict(self) -> dict[str, Any]:
        """By rank. All ranks call this together."""
        return {"ranks": self._ranks.gather(self._other.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put this rank's back.

        Raises:
            InvalidInput: there were more ranks, or fewer.
        """
        states = state["ranks"]
        if len(states) != self._ranks.world_size:
            raise InvalidInput(
                f"the {type(self._other).__name__} was saved by {len(states)} ranks, and there are "
                f"{self._ranks.world_size}: what each of them had read cannot be dealt anew. Go on with {len(states)}: "
                "a run keeps its number of workers where workers.min and workers.max are left out. Or use run.loader, "
                "which goes on with any number"
            )
        self._other.load_state_dict(states[self._ranks.rank])
