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

import torch

from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.shared_memory import ENVIRONMENT, StagingSlot
from airflow_elastic.runtime.tiers.storage.writer import StorageWriter
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Health, RunSpec, Workers


class SavingWorker:
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
        generation: int = 1,
        health: Health | None = None,
    ) -> None:
        self.store = open_store(run) if isinstance(run, str) else run
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        files = JobFiles(Path(folder))
        policy = policy or CheckpointPolicy(keep_last=keep_last)
        spec = RunSpec(("train.py",), workers=Workers(of), checkpoint=policy, health=health or Health())
        members = Members(generation, tuple(range(of)), 0.0)
        files.create(f"members/{generation:04d}.json", members)
        self.node = Worker(
            files, JobRecord("job", self.store.uri, attempt, spec, "", "", sys.executable), index, self.store
        )
        self.node.begin(members)
        self.persister = StorageWriter(self.node)
        paths = json.loads(self.node.slots.environment()[ENVIRONMENT])
        poke = os.open(paths["poke"], os.O_WRONLY | os.O_NONBLOCK)
        self.stage = StagingArea([[StagingSlot.open(path) for path in paths["slots"][0]]], 0, poke)
        weakref.finalize(self.stage, os.close, poke)  # a rank has it until it ends
        self.words = Page.create(Path(f"{self.node.rank_files}-rank-{index}.page")).words
        self.saver = Saver(
            Collectives(index, of, None),
            generation=generation,
            stage=self.stage,
            words=self.words,
            policy=policy,
        )

    def save(
        self, what: Stateful, step: int, position: Position, *, reason: str, metrics: Mapping[str, float]
    ) -> None:
        """Save, and have it written. Raises what writing raises."""
        self.saver.save(what, step, position, reason=reason, metrics=metrics)
        self.persister.flush()


def objects(seed: int) -> Stateful:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return Stateful(model, (optimizer,), {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3)})


def restorer(uri: Path, *, attempt: int = 2, stage: StagingArea | None = None) -> Restorer:
    room = WorkerCache(uri.with_name("room"), 1)
    return Restorer(open_store(str(uri)), Collectives(0, 1, None), attempt=attempt, room=room, stage=stage)


def save(uri: Path, step: int, what: Stateful, *, attempt: int = 1, keep_last: int = 3) -> SavingWorker:
    worker = SavingWorker(str(uri), attempt=attempt, keep_last=keep_last)
    worker.save(what, step, Position(1, 10, step * 10), reason="script", metrics={"loss": 0.5})
    return worker


def trained(model: torch.nn.Module) -> Stateful:
    """A model, and an optimizer that has nothing to keep."""
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.0),), {})


def same(one: Stateful, other: Stateful) -> bool:
    ours, theirs = (torch.nn.utils.parameters_to_vector(o.model.parameters()) for o in (one, other))
    states = [o.optimizers[0].state_dict()["state"][0]["exp_avg"] for o in (one, other)]
    return bool(torch.equal(ours, theirs) and torch.equal(*states))


def wide(seed: int) -> Stateful:
    torch.manual_seed(seed)
    found = network(300_000, 300_000)
    for one in found.model.parameters():
        one.grad = torch.randn_like(one)
    found.optimizers[0].step()
    return found


def network(*widths: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Stateful:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, width) for width in widths))
    return Stateful(model, (optimizer(model.parameters(), lr=0.1),), {})


def spoil(uri: Path, step: int, damage: str) -> None:
    path = uri / layout.checkpoint_data(step, 1, 1) / "rank-00000.bin"
    data = bytearray(path.read_bytes())
    match damage:
        case "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[:-1])
        case "extend":
            path.write_bytes(data + b"\0")
        case "remove":
            path.unlink()
        case "deep manifest":  # deeper than a parser goes
            (uri / layout.manifest(step)).write_text("[" * 200_000)
        case "manifest":
            (uri / layout.manifest(step)).write_text("{")
