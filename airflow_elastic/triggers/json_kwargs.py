"""Check that the arguments of a trigger are plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_elastic.spec.errors import InvalidInput


def require_json(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values if all of them are plain JSON.

    Airflow stores them in its database and hands them to the triggerer. A value that is not plain does not only fail
    its own task. It ends the triggerer with all its triggers, and each triggerer that starts later.

    Raises:
        InvalidInput: names each value that is not plain, by its path.
    """
    found = [f"{path}: {value!r} is a {type(value).__name__}" for path, value in _foreign("", kwargs)]
    if found:
        raise InvalidInput(f"a trigger cannot be given {'; '.join(found)}; allowed: only types that JSON has")
    return dict(kwargs)


def _foreign(path: str, value: object) -> Iterator[tuple[str, object]]:
    # Exactly these types: Airflow decodes a str enum or a subclass of dict as another type than it was.
    if value is None or type(value) in (str, int, bool):
        return
    if type(value) is float:
        if not math.isfinite(value):
            yield path, value
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _foreign(f"{path}.{index}".lstrip("."), item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is str:
                yield from _foreign(f"{path}.{key}".lstrip("."), item)
            else:
                yield f"{path} key".lstrip(), key
    else:
        yield path, value
