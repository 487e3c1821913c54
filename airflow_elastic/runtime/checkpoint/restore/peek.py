"""The state of one of a script's objects in a checkpoint, read before anything is restored."""

from __future__ import annotations

from typing import Any

from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.format.tensor_split import Rest, join_tensors
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.save.named_objects import other_key


def peek(reader: CheckpointReader, store: Store, name: str) -> Any:
    """What its `state_dict()` returned; None where the checkpoint has none of this name.

    Args:
        reader: of the checkpoint.
        store: where it is stored.
        name: of the object.

    Raises:
        CheckpointDamaged: it is not what was committed.
        InvalidInput: it holds a value of a type that is not trusted, or somebody else wrote it.
    """
    key, tensors = other_key(name), dict[str, Any]()
    parts = {"rest": Rest(None), "tensors": tensors}
    if f"{key}.rest" not in reader.kinds:
        return None
    reader.make_room(tensors, f"{key}.tensors.", exact=False)
    reader.plan({key: parts}, {}).read(store)
    return join_tensors(parts["rest"], tensors)
