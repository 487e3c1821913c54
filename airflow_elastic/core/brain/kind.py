"""Which runs are alike: what is learnt from one of them holds for the others.

Alike are runs of the same script in the same place, with the same launcher, engine, ranks of a worker and accelerators.
The arguments may differ: two learning rates take equally long. Processors and memory may differ, too: they are what is
learnt. The place is the image without its tag, or else the folder. It may change with each version of the code,
as `source_root` does. Then it is the name of the run. So it is for a script that is part of the specification.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from airflow_elastic.spec.identity import without_code_paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.spec.run import RunSpec

#: Resources that are no accelerators.
_COMMON = ("cpu", "memory", "ephemeral-storage", "storage")

#: Options of scripts that give the samples of one step of one rank.
_BATCH = re.compile(r"--(?:per[-_]device[-_](?:train[-_])?)?(?:micro[-_]|mini[-_]|local[-_])?batch[-_]size")


def kind_of(spec: RunSpec) -> str:
    """The same 16 hex digits for runs that are alike."""
    workers = spec.workers
    devices = {name: str(n) for name, n in workers.resources.items() if name not in _COMMON}
    return _digest([_place(spec), _script(spec), spec.launcher, spec.engine, workers.procs, devices])


def training_of(spec: RunSpec) -> str:
    """The same 16 hex digits for runs of one kind with equal arguments: their step times can be compared."""
    return _digest([kind_of(spec), _words(spec)])


def batch_of(words: Iterable[str]) -> tuple[str, int] | None:
    """The option of a command that gives the batch of a rank, and its value; None if there is no such option."""
    rest = list(words)
    for i, word in enumerate(rest):
        name, equals, value = word.partition("=")
        if _BATCH.fullmatch(name):
            given = value if equals else rest[i + 1] if i + 1 < len(rest) else ""
            return (name, int(given)) if re.fullmatch(r"[0-9]{1,9}", given) and int(given) > 0 else None
    return None


def accelerators(spec: RunSpec) -> int:
    """Devices that a worker takes; its ranks, if the specification does not name any."""
    found = [str(n) for name, n in spec.workers.resources.items() if name not in _COMMON]
    whole = [int(n) for n in found if re.fullmatch(r"[0-9]{1,6}", n)]
    return max(whole, default=0) or spec.workers.procs


def _words(spec: RunSpec) -> list[str]:
    return [str(word) for word in without_code_paths(spec.to_dict())["command"]]


def _script(spec: RunSpec) -> list[str]:
    words = _words(spec)
    return words[:2] if words[0] == "-m" else words[:1]


def _place(spec: RunSpec) -> str:
    image = spec.engine_options.get("image")
    if isinstance(image, str) and image:
        last = image.partition("@")[0]
        return re.sub(r":[^/:]*$", "", last)
    if spec.source_root or spec.script is not None or not spec.working_dir:
        return f"name {spec.name}"
    return spec.working_dir


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
