"""Saving as a worker with one rank does it, in this process: its agent's slots and persister, and the rank's side."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from airflow_elastic.adapters.jobfiles import JobFiles, JobRecord, Members
from airflow_elastic.adapters.page import Page
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.node import Node
from airflow_elastic.runtime.persister import Persister
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.saving import Position, Saver, Stateful
from airflow_elastic.runtime.slots import ENVIRONMENT, Slot
from airflow_elastic.runtime.stage import Stage
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RunSpec, Workers


class Worker:
    """A worker of its own for an attempt of a run, one of so many that have a rank each."""

    def __init__(
        self,
        run: str | Store,
        *,
        attempt: int = 1,
        keep_last: int = 3,
        index: int = 0,
        of: int = 1,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        self.store = open_store(run) if isinstance(run, str) else run
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        files = JobFiles(Path(folder))
        policy = policy or CheckpointPolicy(keep_last=keep_last)
        spec = RunSpec(("train.py",), workers=Workers(of), checkpoint=policy)
        members = Members(1, tuple(range(of)), 0.0)
        files.create("members/0001.json", members)
        self.node = Node(
            files, JobRecord("job", self.store.uri, attempt, spec, "", "", sys.executable), index, self.store
        )
        self.node.begin(members)
        self.persister = Persister(self.node)
        paths = json.loads(self.node.slots.environment()[ENVIRONMENT])
        self.stage = Stage(
            [[Slot.open(path) for path in paths["slots"][0]]],
            0,
            os.open(paths["poke"], os.O_WRONLY | os.O_NONBLOCK),
        )
        self.words = Page.create(Path(f"{self.node.rank_files}-rank-{index}.page")).words
        self.saver = Saver(
            Ranks(index, of, None), generation=1, stage=self.stage, words=self.words, policy=policy
        )

    def save(
        self, what: Stateful, step: int, position: Position, *, reason: str, metrics: Mapping[str, float]
    ) -> None:
        """Save, and have it written. Raises what writing raises."""
        self.saver.save(what, step, position, reason=reason, metrics=metrics)
        self.persister.flush()
