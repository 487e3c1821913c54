"""A specification that is being built: the manifest's settings as fields of a run, with their paths in the manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.manifests.commands import Launch
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.engines.quantities import number_of
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import ABSENT, Problem, SpecError
from airflow_elastic.spec.run import RunSpec

#: More than 64 bits hold. Python itself refuses to read thousands of digits.
_MOST_DIGITS = 30

#: Resources that are devices: each rank has one.
_DEVICES = ("gpu", "mig-", "gaudi", "npu", "ascend", "mlu", "tpu", "neuron")

#: The words that operators accept for a number of ranks.
_RANKS = ("auto", "gpu", "cpu")


class RunBuilder:
    """A specification that is being built.

    Attributes:
        plain: the plain values of the specification.
        source: the paths in the manifest, by the paths of the fields that they have set.
    """

    def __init__(self) -> None:
        self.plain: dict[str, Any] = {"workers": {}, "restart": {}, "health": {}, "engine_options": {}}
        self.options: dict[str, Any] = self.plain["engine_options"]
        self.workers: dict[str, Any] = self.plain["workers"]
        self.source: dict[str, str] = {}

    def set_field(self, field: str, value: Any, source: str) -> None:
        """Set a field of the specification by its path, from a path of the manifest; does nothing for None."""
        if value is None:
            return
        *parents, last = field.split(".")
        holder = self.plain
        for name in parents:
            holder = holder.setdefault(name, {})
        holder[last] = value
        self.source[field] = source

    def option(self, name: str, part: Section, key: str) -> None:
        """Take a field as one of `engine_options`."""
        self.set_field(f"engine_options.{name}", part.take(key), part.at(key))

    def spec(self) -> RunSpec:
        """The finished specification, which its engine and launcher can carry out.

        Raises:
            SpecError: they cannot; with the paths in the manifest of the wrong values.
        """
        try:
            found = RunSpec.from_dict(
                {k: value for k, value in self.plain.items() if value not in ({}, None)}
            )
            find_launcher(found.launcher).refuse(found)
            find_engine(found.engine).check(found)
        except SpecError as error:
            raise SpecError(*map(self._at_home, error.problems)) from None
        return found

    def _at_home(self, problem: Problem) -> Problem:
        # In a sentence, names of a single word are only words.
        names = {field: path for field, path in self.source.items() if "." in field}
        return problem.renamed(self._path(problem.path), names)

    def _path(self, path: str) -> str:
        known = [field for field in self.source if f"{path}.".startswith(f"{field}.")]
        if not known:
            return path
        longest = max(known, key=len)
        return f"{self.source[longest]}{path.removeprefix(longest)}"

    # -- how many, how long ------------------------------------------------------------------------------------------

    def number(
        self,
        count: int,
        source: str,
        least: int | None = None,
        most: int | None = None,
        bounds: tuple[str, str] = ("", ""),
    ) -> None:
        """The number of workers, and the fewest and the most, from these two paths of the manifest."""
        self.set_field("workers.count", count, source)
        self.set_field("workers.min", least, bounds[0])
        self.set_field("workers.max", most, bounds[1])

    def policy(self, part: Section, cleanup: str) -> None:
        """A `runPolicy`: restarts, deadline and cleanup become the run's."""
        self.limits(part)
        policy = part.take(cleanup)
        self.set_field("cleanup", {"Running": "Unfinished"}.get(policy, policy), part.at(cleanup))

    def limits(self, part: Section) -> None:
        """`backoffLimit` and `activeDeadlineSeconds`."""
        self.set_field("restart.backoff_limit", part.take("backoffLimit"), part.at("backoffLimit"))
        key = "activeDeadlineSeconds"
        self.set_field("active_deadline_seconds", part.take(key), part.at(key))

    # -- how ranks are started ---------------------------------------------------------------------------------------

    def launch(self, found: Launch, command: str, procs: Procs) -> None:
        """Launcher and command, from this path of the manifest, and the ranks, which the manifest may also give."""
        self.set_field("launcher", found.launcher, command)
        self.set_field("command", list(found.command), command)
        self.set_field("engine_options.python", found.python, command)
        self.set_field("engine_options.wrapper", list(found.wrapper) or None, command)
        options = dict(found.options)
        self.set_field("workers.node_unit", options.pop("node_unit", None), command)
        for name, value in options.items():
            self.set_field(f"launcher_options.{name}", value, command)
        if found.max_restarts is not None and "backoff_limit" not in self.plain["restart"]:
            self.set_field("restart.backoff_limit", found.max_restarts, command)
        if found.deadline is not None:
            limit = min(found.deadline, self.plain.get("active_deadline_seconds", found.deadline))
            self.set_field("active_deadline_seconds", limit, command)
        if found.launcher != "python":
            self._nodes(found, command)
            self._procs(found, command, procs)
        ranks = self.workers.get("procs", 1)
        if procs.given and procs.words is not None:
            self._agree(procs, procs.words, ranks, found)

    def _agree(self, procs: Procs, words: str, ranks: int, found: Launch) -> None:
        """Refuse a number of ranks in the manifest that contradicts the command."""
        number = whole(words)
        if number not in (None, ranks):
            how = "as the command says" if found.procs or found.ranks else "as its program is one rank"
            raise SpecError(Problem(procs.path, words, f"{ranks}, {how}, or a launcher that starts more"))
        if number is None and words not in _RANKS:
            raise SpecError(Problem(procs.path, words, f"a number of ranks, or {', '.join(_RANKS)}"))

    def _nodes(self, found: Launch, command: str) -> None:
        count = self.workers.get("count", 1)
        if found.nodes is None:
            return
        least, most = found.nodes
        if not least <= count <= most:
            where = self.source.get("workers.count", "workers.count")
            given = f"--nnodes={least}" + (f":{most}" if most != least else "")
            raise SpecError(Problem(command, given, f"as many as there are workers, {count} ({where})"))
        if least != most:
            for name, bound in (("min", least), ("max", most)):
                if name not in self.workers:
                    self.set_field(f"workers.{name}", bound, command)

    def _procs(self, found: Launch, command: str, procs: Procs) -> None:
        if found.ranks is not None:
            count = found.nodes[1] if found.nodes else self.workers.get("count", 1)
            if found.ranks % max(count, 1):
                allowed = f"a multiple of the number of workers, {count}"
                raise SpecError(Problem(command, f"--num_processes {found.ranks}", allowed))
            self.set_field("workers.procs", found.ranks // max(count, 1), command)
        elif found.procs is not None:
            self.set_field("workers.procs", self._number(found.procs, command), command)
        elif found.launcher == "accelerate":
            self.set_field("workers.procs", self.devices() or 1, command)
        elif procs.words is not None:
            self.set_field("workers.procs", self._number(procs.words, procs.path), procs.path)
        elif procs.refusal is not None:
            raise SpecError(Problem(procs.path, ABSENT, procs.refusal))

    def _number(self, words: str, path: str) -> int:
        if (number := whole(words)) is not None:
            return number
        devices = self.devices()
        if words in ("gpu", "auto") and devices:
            return devices
        cores = "" if words == "gpu" else "; without any it would be as many as the machine has processors"
        allowed = f"a number of ranks of each worker, or gpu and auto with GPUs among the limits{cores}"
        raise SpecError(Problem(path, words, allowed))

    def devices(self) -> int | None:
        """How many GPUs, or other devices, each worker has; None if there is not one amount."""
        amounts = [amount for name, amount in self.workers.get("resources", {}).items() if is_device(name)]
        whole = [number_of(amount) for amount in amounts]
        return int(whole[0]) if len(whole) == 1 and whole[0] == int(whole[0]) and whole[0] else None

    def processors(self, resources: Mapping[str, Any]) -> int:
        """The processors that a container requests, rounded up, at least 1."""
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get("cpu", "1")
        return max(1, math.ceil(number_of(str(asked))))


class Procs:
    """Ranks of each worker, as the manifest gives them beside the command.

    Args:
        words: a number, `auto`, `gpu` or `cpu`; None for the launcher's default.
        path: its path.
        refusal: why the words are required, if there are none.
        given: whether they are in the manifest itself, and not the operator's default.
    """

    def __init__(self, words: object, path: str, *, refusal: str | None = None, given: bool = True) -> None:
        self.words = None if words is None else str(words)
        self.path, self.refusal, self.given = path, refusal, given

    def known(self) -> dict[str, str]:
        """The variable of torchrun that an operator sets to this number."""
        return {} if self.words is None else {"PET_NPROC_PER_NODE": self.words}


def is_device(name: str) -> bool:
    """Whether a resource is a device: each rank has one."""
    return any(part in name.lower() for part in _DEVICES)


def whole(text: str) -> int | None:
    """The number in a text; None if it is none, or has too many digits to be of use."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
