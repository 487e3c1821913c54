"""Plain words of YAML as kubectl reads them: YAML 1.1 as in sigs.k8s.io/yaml, sent as JSON.

So `yes`, `y` and `on` are true, `0777` and `0o777` are 511, `1e3` is 1000; `1:30`, `2026-01-01` and `1e400` are text.
"""

from __future__ import annotations

import base64
import math
import re

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{f"{sign}{word}": math.inf for word in (".inf", ".Inf", ".INF") for sign in ("", "+")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[+-]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][+-]?[0-9]+)?")

Plain = str | int | float | bool | None


def plain_scalar(word: str) -> Plain:
    """The value of a word without quotes and tag; may be infinite or not a number, which JSON cannot express."""
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    return _number(word.replace("_", ""), word)


def tagged_scalar(tag: str, word: str) -> Plain:
    """The value of a word with a tag of YAML, such as `!!str`. Raises ValueError."""
    if tag == "tag:yaml.org,2002:bool" and not isinstance(_WORDS.get(word), bool):
        raise ValueError(f"{word!r} is not true or false")
    if tag == "tag:yaml.org,2002:null":
        return None
    if tag in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return plain_scalar(word)
    if tag == "tag:yaml.org,2002:binary":
        return base64.b64decode(word).decode()  # its errors are ValueErrors
    return word  # including dates and custom tags


def _number(digits: str, word: str) -> Plain:
    if found := _INTEGER.fullmatch(digits):
        for base, group in ((16, 2), (2, 3), (8, 4), (10, 5)):
            if found[group]:
                number = int(f"{found[1]}{found[group]}", base)
                if -(2**63) <= number < 2**64:
                    return number
    if _FLOAT.fullmatch(digits) and math.isfinite(real := float(digits)):
        return as_json(real)
    return word


def as_json(number: float) -> int | float:
    """The number as JSON writes it: without an empty fraction."""
    return int(number) if number.is_integer() and abs(number) < 1e21 else number
