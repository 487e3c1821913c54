"""The keys that are valid in every store, so that a run can move from a folder to S3 and back."""

from __future__ import annotations

import re

from airflow_elastic.spec.errors import InvalidInput

RESERVED = ".elastic-tmp-"  # prefix of temp files; no key may use it, no listing shows it
MAX_KEY_BYTES = 900  # S3 allows 1024 for the prefix of the URI and the key together
MAX_PART_BYTES = 255  # the longest file name of the usual file systems

_CONTROL = re.compile(r"[\x00-\x1f\x7f\\\ufffe\uffff]")  # not in XML answers, or a separator elsewhere
_USERINFO = re.compile(r"(?<=//)[^/\s]*@")  # greedy up to the last @, since passwords may hold one
_ACCESS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")


def key_problem(key: str) -> str | None:
    """What is wrong with `key`, in words, or None where it is a valid key."""
    if not key:
        return "it is empty"
    if _CONTROL.search(key):
        return "it holds a control character or a backslash"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "it holds characters that have no UTF-8 form"
    if size > MAX_KEY_BYTES:
        return f"it is {size} bytes long, more than {MAX_KEY_BYTES}"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"it holds the part {part!r}"
        if part.startswith(RESERVED):
            return f"names that start with {RESERVED!r} are kept for files being written"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"the part that starts with {part[:20]!r} is longer than {MAX_PART_BYTES} bytes"
    return None


def check_key(key: str) -> str:
    """`key` itself; raises InvalidInput where it is not a valid key."""
    if problem := key_problem(key):
        raise InvalidInput(
            f"{key!r} cannot be the key of an object: {problem}; allowed are relative keys such as "
            "'journal/00000001.json': parts between single '/', none of them '.' or '..'"
        )
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself; raises InvalidInput if no key can start with it. Its last part may be cut anywhere."""
    folder, slash, _ = prefix.rpartition("/")
    if _CONTROL.search(prefix) or (slash and key_problem(folder)):
        raise InvalidInput(
            f"{prefix!r} cannot be the prefix of a key; allowed are '' and the beginning of a relative key, "
            "such as 'journal/' or 'journal/0000'"
        )
    return prefix


def check_range(start: int, limit: int) -> None:
    """Raises InvalidInput for a negative offset or length (both in bytes)."""
    if start < 0 or limit < 0:
        raise InvalidInput(f"cannot read {limit} bytes from offset {start}: both must be 0 or more")


def scrub(text: str) -> str:
    """`text` without what may be a credential: the user and password of a URL, an AWS access key id."""
    return _ACCESS_KEY.sub("***", _USERINFO.sub("***@", text))
