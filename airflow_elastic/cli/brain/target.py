"""What a command is about: a run that exists, or the specification of a new one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain.read import facts_of
from airflow_elastic.cli.drive.options import with_defaults
from airflow_elastic.cli.drive.spec_file import build, read_plain
from airflow_elastic.cli.find_run import find_run
from airflow_elastic.spec.errors import InvalidInput, RunMissing

if TYPE_CHECKING:
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.run import RunSpec

_YAML = (".yaml", ".yml", ".json")


class Target(NamedTuple):
    """A specification; and of a run that exists, its URI and what it says about itself."""

    spec: RunSpec
    uri: str | None = None
    own: Facts | None = None


def find_target(word: str, engine: str | None = None) -> Target:
    """The run at a URI, or the specification in a YAML file.

    Raises:
        InvalidInput: it is neither, or the file cannot be read.
    """
    if os.path.isfile(word):
        plain = read_plain(word)
        return Target(
            build(with_defaults({**plain, "engine": engine} if engine is not None else plain), word)
        )
    if word.endswith(_YAML):
        raise InvalidInput(
            f"{word}: there is no such file; name a specification in YAML, or the URI of a run"
        )
    if engine is not None:
        raise InvalidInput("--engine goes with a specification in YAML; a run stays on its engine")
    try:
        spec = find_run(word).state.spec
    except RunMissing:
        raise RunMissing(
            f"{word} is neither a file nor a run: name a specification in YAML, or the URI of a run"
        ) from None
    store = open_store(word)
    return Target(spec, store.uri, facts_of(store, time.time()))
