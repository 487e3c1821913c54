"""The folder store behaves like a dict, whatever is done to it in whatever order."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Entry

# Files and folders have names of their own, since a folder store cannot hold an object of a folder's name.
_KEYS = st.builds(
    lambda folders, name: "/".join([*folders, name]),
    st.lists(st.sampled_from(["d", "d-", "D é", ".d"]), max_size=2),
    st.sampled_from(["f", "f.g", " f", ".f", "f%20"]),
)
_DATA = st.binary(max_size=40)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _KEYS, _DATA),
        st.tuples(st.just("create"), _KEYS, _DATA),
        st.tuples(st.just("delete"), st.lists(_KEYS, max_size=4), st.none()),
        st.tuples(st.just("read_from"), _KEYS, st.tuples(st.integers(0, 50), st.integers(0, 50))),
        st.tuples(st.just("list"), _KEYS, st.integers(0, 8)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(_STEPS)
def test_a_folder_store_is_a_dict(steps: list[tuple[str, object, object]]) -> None:
    model: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as root:
        store = FolderStore(root)
        for do, what, how in steps:
            match do, what, how:
                case "put", str(key), bytes(data):
                    store.put(key, data)
                    model[key] = data
                case "create", str(key), bytes(data):
                    assert store.create(key, data) is (model.setdefault(key, data) == data)
                case "delete", list(keys), _:
                    store.delete(keys)
                    for key in keys:
                        model.pop(key, None)
                case "read_from", str(key), (int(start), int(limit)):
                    assert store.read_from(key, start, limit) == model.get(key, b"")[start : start + limit]
                case "list", str(key), int(length):
                    prefix = key[:length]
                    assert store.list(prefix) == _entries(model, prefix)
        assert store.list() == _entries(model, "")
        assert {key: store.get(key) for key in model} == model


def _entries(model: dict[str, bytes], prefix: str) -> list[Entry]:
    return [Entry(key, len(model[key])) for key in sorted(model) if key.startswith(prefix)]
