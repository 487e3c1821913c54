"""Which fields the schema of an installed kind has. Pure.

An API server refuses fields that its schema lacks, or drops them. Clusters may have different versions of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def keeps_field(schema: Mapping[str, Any], *path: str) -> bool:
    """Whether objects of this OpenAPI schema keep the field at `path`. Yes if the schema is unknown."""
    for name in path:
        if (
            not schema
            or schema.get("x-kubernetes-preserve-unknown-fields")
            or {"$ref", "allOf"} & schema.keys()
        ):
            return True
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", False)
        if name in fields:
            schema = fields[name]
        elif isinstance(others, Mapping):
            schema = others
        else:
            return bool(others)
    return True
