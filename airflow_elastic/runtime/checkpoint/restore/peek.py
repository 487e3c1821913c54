"""Read the state of one of a script's objects from a checkpoint, before anything is restored."""

from __future__ import annotations

from typing import Any

from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.format.tensor_split import Rest, join_tensors
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.save.named_objects import other_key


def peek(reader: CheckpointReader, store: Store, name: str) -> Any:
    """The object's `state_dict()` when the checkpoint was saved; None if the checkpoint has no object of this name.

    Args:
        reader: of the checkpoint.
        store: where it is stored.
        name: of the object.

    Raises:
        CheckpointDamaged: its bytes have changed.
        InvalidInput: it holds a value of a type that is not trusted, or another program wrote it.
    """
    key, tensors = other_key(name), dict[str, Any]()
    parts = {"rest": Rest(None), "tensors": tensors}
    if f"{key}.rest" not in reader.kinds:
        return None
    reader.make_room(tensors, f"{key}.tensors.", exact=False)
    reader.plan({key: parts}, {}).read(store)
    return join_tensors(parts["rest"], tensors)
