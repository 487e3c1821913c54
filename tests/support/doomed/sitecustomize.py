"""Deaths at chosen points: what every Python process of a run does first that finds this folder on its PYTHONPATH.

Which deaths stands in the folder that ELASTIC_TEST_DOOM names: `tests.support.doom` says how. Nothing is polled: a
process that comes to its point writes down that it has, and kills. A copy of the state of every phase's end is never
made: what runs is the product as it stands, with a question asked in between.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ.get("ELASTIC_TEST_DOOM", "/nowhere"))

#: Of what an agent does. Ranks wait for the death there: else a short training might be over before it comes.
OF_AGENTS = ("persisting", "commit")


class Death:
    """The one that is to come in an attempt, as one process of it counts the points that it passes."""

    def __init__(self, attempt: int) -> None:
        self.attempt, self.passed, self.lock = attempt, 0, threading.Lock()
        self.hit = FOLDER / f"hit-{attempt:04d}.json"
        try:
            self.order = json.loads((FOLDER / f"order-{attempt:04d}.json").read_bytes())
        except FileNotFoundError:
            self.order = {"phase": None, "step": 0, "world": None}

    def meant(self, step: int, world: int) -> bool:
        return bool(step >= self.order["step"] and self.order["world"] in (None, world))

    def point(self, phase: str, where: str, *, step: int, world: int, place: int | None = None) -> None:
        """This process has come to a point of a phase: if it is the chosen one, somebody dies now."""
        order = self.order
        if phase != order["phase"] or not self.meant(step, world) or place not in (None, order["place"]):
            return
        with self.lock:
            self.passed += 1
            if self.passed <= order["points"]:
                return
            told = {"phase": phase, "where": where, "step": step, "world": world, "victim": order["victim"]}
            whole = FOLDER / f"{os.getpid()}-{threading.get_ident()}"
            whole.write_text(json.dumps(told))
            try:
                os.link(whole, self.hit)  # who reads it meanwhile finds all of it, or no file
            except FileExistsError:
                return
            for pid in victims(order["victim"], agent=phase in OF_AGENTS):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def victims(who: str, *, agent: bool) -> list[int]:
    """Of a worker, as its agent or one of its ranks sees it: this process comes last."""
    if agent:
        return [*(_ranks() if who in ("rank", "both") else ()), *([os.getpid()] if who != "rank" else ())]
    return [*([os.getppid()] if who in ("agent", "both") else ()), *([os.getpid()] if who != "agent" else ())]


def _ranks() -> Iterator[int]:
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("rank-"):
                    yield int(pid)


DEATHS: dict[int, Death] = {}


def death(attempt: int) -> Death:
    return DEATHS.setdefault(attempt, Death(attempt))


# -- ranks -----------------------------------------------------------------------------------------------------


def in_session(module: ModuleType) -> None:
    """Forward, backward and step of a rank's training, from where it has restored."""
    import torch

    restore = module.Session.restore

    def restored(self: Any, model: Any, *optimizers: Any, **others: Any) -> Any:
        begins = restore(self, model, *optimizers, **others)
        mine = death(self.attempt)
        if self.rank == 0:
            with (FOLDER / "began").open("a") as file:
                file.write(f"{self.world_size} {begins}\n")

        def point(phase: str, where: str = "") -> None:
            mine.point(phase, where, step=self.steps + 1, world=self.world_size, place=self.rank)

        class Between(torch.overrides.TorchFunctionMode):
            """Between the operations on one parameter and the next, as torch is called."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                point("step", getattr(func, "__name__", ""))
                return func(*args, **kwargs or {})

        between: list[Between] = []

        def begin(*_: Any) -> None:
            STAGED.wait_for_death(mine, self.steps)
            between.append(Between())
            between[-1].__enter__()

        def end(*_: Any) -> None:
            between.pop().__exit__(None, None, None)
            point("step", "behind it")

        for name, one in model.named_modules():
            one.register_forward_hook(lambda *_, name=name: point("forward", name))
        for name, one in model.named_parameters():
            one.register_hook(lambda _, name=name: point("backward", name))
        for one in optimizers:
            one.register_step_pre_hook(begin)
            one.register_step_post_hook(end)
        return begins

    module.Session.restore = restored


def in_restoring(module: ModuleType) -> None:
    """What ranks of a worker fetch for each other."""
    begin, download, attempts = module.Restorer.__init__, module.FetchOnce._download, [0]

    def begun(self: Any, *what: Any, **how: Any) -> None:
        begin(self, *what, **how)
        attempts[0] = self._attempt

    def fetched(self: Any, key: str, nearby: Any, told: Any) -> None:
        download(self, key, nearby, told)
        step, ranks = int(key.split("/")[2].partition("-")[0]), self._ranks
        mine = death(attempts[0])
        mine.point("restoring", key, step=step, world=ranks.world_size, place=ranks.rank)

    module.Restorer.__init__, module.FetchOnce._download = begun, fetched


class Staged:
    """What this rank has staged for its agent to die of."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.note: Any = None

    def wait_for_death(self, mine: Death, step: int) -> None:
        """Train on for some steps, and no further."""
        if self.step is not None and step >= self.step + mine.order["later"]:
            late = time.monotonic() + 300.0
            while not mine.hit.exists():
                if time.monotonic() > late:
                    raise AssertionError(f"nobody came to {mine.order}: does the phase have so many points?")
                time.sleep(0.005)


STAGED = Staged()


def in_stage(module: ModuleType) -> None:
    """What is copied, and what is told of it."""

    def mine() -> Death:
        return death(int(os.environ.get("AIRFLOW_ELASTIC_ATTEMPT", "0")))  # a fork server does not know it

    def point(where: str) -> None:
        if (note := STAGED.note) is not None:
            mine().point("staging", where, step=note.step, world=note.world_size, place=note.rank)

    def noted(put: Callable[..., Any]) -> Callable[..., Any]:
        def around(self: Any, layout: Any, note: Any, *args: Any) -> Any:
            STAGED.note = note
            point("before")
            done = put(self, layout, note, *args)
            point("behind")
            if mine().order["phase"] in OF_AGENTS and mine().meant(note.step, note.world_size):
                STAGED.step = note.step
            return done

        return around

    copy = importlib.import_module("airflow_elastic.runtime.checkpoint.save.layout")

    def one_by_one(rooms: Any, tensors: Any, *, on_gpu: bool, inner: Any = copy._copy_all) -> None:
        for number, (room, tensor) in enumerate(zip(rooms, tensors, strict=True)):
            inner([room], [tensor], on_gpu=on_gpu)
            point(f"tensor {number}")

    copy._copy_all = one_by_one
    module.StagingArea.put, module.StagingArea.put_beside = (
        noted(module.StagingArea.put),
        noted(module.StagingArea.put_beside),
    )
    finish = module.StagingSlot.finish

    def told(self: Any, *args: Any) -> None:
        point("copied")
        finish(self, *args)
        point("noted")

    module.StagingSlot.finish = told


# -- agents ----------------------------------------------------------------------------------------------------

#: What is being done: points with their phase's name filled in.
AT_WORK = threading.local()


def in_persister(module: ModuleType) -> None:
    """Files that are being written, and the checkpoint that comes to be out of them."""
    write_files, tell = module.write_files, module.tell
    checkpoints, folder = (
        module.checkpoints,
        importlib.import_module("airflow_elastic.adapters.storage.folder"),
    )
    commit, sync = checkpoints.commit, folder.sync

    def writing(store: Any, held: Any, data: str, attempt: int, moved: Any, pace: Any, by: int | None) -> Any:
        note = held[0][1]

        def point(where: str) -> None:
            place = note.rank // len(held)
            death(attempt).point("persisting", where, step=note.step, world=note.world_size, place=place)

        @contextlib.contextmanager
        def at_pace(size: int) -> Iterator[None]:
            with pace(size):
                point("before its data")
                yield
                point("behind its data")

        def on() -> None:
            point("behind all")
            moved()

        with doing(point):
            return write_files(store, held, data, attempt, on, at_pace, by)

    def telling(store: Any, part: Any) -> Any:
        one = part.manifest

        def point(where: str) -> None:
            death(one.attempt).point("commit", where, step=one.step, world=one.world_size)

        with doing(point):
            point("before its part")
            done = tell(store, part)
            point("behind its part")
        return done

    def committing(store: Any, manifest: Any) -> Any:
        reached("before the manifest")
        done = commit(store, manifest)
        reached("behind the manifest")
        return done

    def syncing(file: Any) -> None:
        reached("half-written")
        sync(file)
        reached("without its name")

    module.write_files, module.tell, checkpoints.commit, folder.sync = writing, telling, committing, syncing


@contextlib.contextmanager
def doing(point: Callable[[str], None]) -> Iterator[None]:
    AT_WORK.point = point
    try:
        yield
    finally:
        AT_WORK.point = None


def reached(where: str) -> None:
    if (point := getattr(AT_WORK, "point", None)) is not None:
        point(where)


# -- modules are changed as they are imported --------------------------------------------------------------------


def in_s3_bulk(module: ModuleType) -> None:
    """The least that S3 takes: an upload in parts costs a test less."""
    module.PART_BYTES = 5 << 20


_IN = {
    "airflow_elastic.adapters.storage.s3.bulk": in_s3_bulk,
    "airflow_elastic.runtime.tiers.storage.writer": in_persister,
    "airflow_elastic.runtime.checkpoint.restore.restore": in_restoring,
    "airflow_elastic.runtime.session.session": in_session,
    "airflow_elastic.runtime.checkpoint.save.staging_area": in_stage,
}


class Changing(importlib.abc.MetaPathFinder):
    """Finds what everybody finds, and changes it when it is there."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in _IN:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert found is not None
        assert found.loader is not None
        found.loader.exec_module = self._then(found.loader.exec_module, _IN[name])  # type: ignore[method-assign]
        return found

    @staticmethod
    def _then(execute: Callable[[ModuleType], None], change: Callable[[ModuleType], None]) -> Any:
        def both(module: ModuleType) -> None:
            execute(module)
            change(module)

        return both


if FOLDER.is_dir():
    sys.meta_path.insert(0, Changing())
