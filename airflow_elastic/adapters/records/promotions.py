"""The promotions of a model URI. Creating a record is the one atomic change that promotes a model.

Two promoters may be at work. Each creates the record of the next number, and one of them wins. The other one learns
that, and compares its candidate with the new model.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import InvalidInput, SpecError, StoreError
from airflow_elastic.spec.models import Promotion, layout
from airflow_elastic.spec.models.promotion import PROMOTION_VERSION

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


def numbers(store: Store) -> list[int]:
    """The numbers of all promotions, oldest first. Empty where nothing is promoted."""
    names = (PurePosixPath(entry.key) for entry in store.list(layout.PROMOTIONS))
    found = (int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdecimal())
    return sorted(number for number in found if number > 0)


def current(store: Store) -> Promotion | None:
    """The promotion that counts: the newest one. None where nothing is promoted. Raises StoreError, as `read` does."""
    found = numbers(store)
    return read(store, found[-1]) if found else None


def history(store: Store) -> list[Promotion]:
    """All promotions, oldest first. Raises StoreError, as `read` does."""
    return [read(store, number) for number in numbers(store)]


def read(store: Store, number: int) -> Promotion:
    """The record of a promotion.

    Raises:
        InvalidInput: there is no such promotion.
        StoreError: the record cannot be read: it is damaged, or of a newer release.
    """
    data = store.get(layout.promotion(number))
    if data is None:
        told = ", ".join(map(str, numbers(store))) or "none"
        raise InvalidInput(f"{store.uri} has no promotion {number}; there are: {told}")
    try:
        plain = json.loads(data)
        version = plain.get("version")
        if isinstance(version, int) and version > PROMOTION_VERSION:
            raise ValueError(f"it has version {version}, this release reads {PROMOTION_VERSION}")
        found = decode(Promotion, plain)
        if found.number != number:
            raise ValueError(f"it is a copy of promotion {found.number}")
    except (ValueError, AttributeError, SpecError, RecursionError) as error:
        where = f"{store.uri}/{layout.promotion(number)}"
        raise StoreError(f"{where} cannot be read as a promotion: {error}") from error
    return found


def create(store: Store, promotion: Promotion) -> bool:
    """Promote a model. False: another promoter has taken this number; read it and compare again."""
    return store.create(layout.promotion(promotion.number), _bytes(promotion))


def mend(store: Store) -> Promotion | None:
    """Make `current.json` a copy of the newest record, if it is not; returns the record.

    A promoter that was killed between the two writes leaves the former copy.
    """
    while (newest := current(store)) is not None:
        wanted = _bytes(newest)
        if store.get(layout.CURRENT) != wanted:
            store.put(layout.CURRENT, wanted)
        if numbers(store)[-1] == newest.number:
            return newest
    return None


def _bytes(promotion: Promotion) -> bytes:
    return json.dumps(encode(promotion), indent=1).encode()
