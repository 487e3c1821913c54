"""The environment variables of a rank: those of torchrun (rank, world size), and those of airflow-elastic."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_elastic.adapters.records.job_files import RESTORE
from airflow_elastic.runtime.tiers.peers.peer_client import PeerFile, find_peer_files
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.validation import (
    MOST_PROCS,
    MOST_WORKERS,
    non_negative_int,
    number_in,
    positive_int,
)

#: Of this machine.
PROCESSORS = os.cpu_count() or 1

_RANKS = non_negative_int._replace(most=MOST_WORKERS * MOST_PROCS, why="no run may have more ranks")
_PROCESSORS = positive_int._replace(most=2**16, why="no machine has more")


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """A rank's environment. If airflow-elastic did not start it, airflow-elastic's own values are None or 1."""

    rank: int
    local_rank: int
    world_size: int
    run_uri: str | None
    attempt: int
    generation: int
    checkpoint: CheckpointPolicy | None
    page: Path | None
    worker: str = "node-0"
    disk: Path | None = None
    loans: Mapping[str, PeerFile] = field(default_factory=dict)
    processors: int = PROCESSORS
    origin: Origin | None = None
    early_stop: str | None = None
    evaluation: bool = False

    @property
    def restore_folder(self) -> Path:
        """The folder for files that ranks of a worker fetch for each other during a restore."""
        near = self.page.parent if self.page else Path(tempfile.gettempdir(), str(os.getpid()))
        return near / f"{RESTORE}{self.generation}"

    @classmethod
    def read(cls) -> RankEnvironment:
        """Read the environment of this process. Raises SpecError for a value that is not a number, or out of range."""
        env = os.environ
        rank = number_in(env, "RANK", 0, rule=_RANKS)
        prefix, policy = env.get("AIRFLOW_ELASTIC_RANK_FILES"), env.get("AIRFLOW_ELASTIC_CHECKPOINT")
        origin = env.get("AIRFLOW_ELASTIC_ORIGIN")
        return cls(
            rank=rank,
            local_rank=number_in(env, "LOCAL_RANK", 0, rule=_RANKS),
            world_size=number_in(env, "WORLD_SIZE", 1, rule=_RANKS),
            run_uri=env.get("AIRFLOW_ELASTIC_RUN_URI"),
            attempt=number_in(env, "AIRFLOW_ELASTIC_ATTEMPT", 1),
            generation=number_in(env, "AIRFLOW_ELASTIC_GENERATION", 1),
            checkpoint=decode(CheckpointPolicy, json.loads(policy)) if policy else None,
            page=Path(f"{prefix}-rank-{rank}.page") if prefix else None,
            worker=env.get("AIRFLOW_ELASTIC_WORKER", "node-0"),
            disk=Path(env["AIRFLOW_ELASTIC_DISK"]) if "AIRFLOW_ELASTIC_DISK" in env else None,
            loans=find_peer_files(),
            early_stop=env.get("AIRFLOW_ELASTIC_EARLY_STOP"),
            origin=decode(Origin, json.loads(origin)) if origin else None,
            evaluation=env.get("AIRFLOW_ELASTIC_EVALUATION") == "1",
            processors=number_in(env, "AIRFLOW_ELASTIC_PROCESSORS", PROCESSORS, rule=_PROCESSORS),
        )
