"""An engine whose room a file says: its number of workers; `gone` if it cannot be found out any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from airflow_elastic.engines.api import ROOM_LIMITS, Limit, Room
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine


class Shelf(FakeEngine):
    """Its option `file` names the file."""

    def check(self, spec: RunSpec) -> None:
        """Every option is allowed."""

    async def room(self, spec: RunSpec, limits: Collection[str] = ROOM_LIMITS) -> Room:
        """What the file says."""
        said = await asyncio.to_thread(Path(spec.engine_options["file"]).read_text)
        if said == "gone":
            raise InvalidInput("the shelf is gone")
        return Room((Limit("shelf", int(said), f"{said} places on the shelf"),))
