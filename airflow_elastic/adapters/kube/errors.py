"""What an API server can answer, as errors: a class for each answer that somebody treats differently.

All are EngineErrors, which are waited out; what cannot be mended by waiting is also a SubmitRefused when a job is
submitted: `is_final` says so.
"""

from __future__ import annotations

import json
import re
from typing import Any

from airflow_elastic.spec.errors import EngineError


class KubeError(EngineError):
    """The API server could not be reached, or answered with an error.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        is_final: whether the same request would be answered alike for ever.
    """

    is_final = False

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Missing(KubeError):
    """404: there is no such object."""


class NoSuchKind(KubeError):
    """404: the cluster does not know this kind of object at all."""

    is_final = True


class Conflict(KubeError):
    """409: there is one of that name already, or it has changed meanwhile."""


class Gone(KubeError):
    """410: a watch wants to begin where the server remembers nothing any more. List anew."""


class Invalid(KubeError):
    """400 or 422, refused by an admission plug-in, or in no namespace: the object is not as the cluster wants it."""

    is_final = True


class OverQuota(KubeError):
    """403: a quota of the namespace is used up. It lasts until others have ended."""


class Forbidden(KubeError):
    """401 or 403: the rights are missing, or the namespace is about to go."""

    is_final = True


def error_of(status: int, body: bytes, what: str) -> KubeError:
    """The error for an answer.

    Args:
        status: HTTP status, 400 or more.
        body: the answer; a Status object where the API server itself speaks.
        what: what was asked, e.g. `create jobs.batch in namespace ml`.
    """
    plain = _status(body)
    said = str(plain.get("message") or body[:300].decode(errors="replace").strip() or "no reason given")
    if status == 404:
        return _not_found(plain, body, what)
    if status == 401:
        return Forbidden(f"cannot {what}: {said}; log in again", status)
    if status == 403:
        return _forbidden(said, what)
    if status == 409:
        return Conflict(f"cannot {what}: {said}", status)
    if status == 410:
        return Gone(f"cannot {what}: {said}", status)
    if status in (400, 422):
        return Invalid(f"the cluster refuses to {what}: {said}", status)
    return KubeError(f"cannot {what} for now: {said} (HTTP {status})", status)


def _not_found(plain: dict[str, Any], body: bytes, what: str) -> KubeError:
    """The API server says so in a Status, or in four words of plain text; anything else is somebody in front of it."""
    if plain.get("reason") == "NotFound":
        details = plain.get("details") or {}
        if details.get("kind") == "namespaces":
            return Invalid(
                f"the cluster refuses to {what}: {plain.get('message')}; create it, or name another", 404
            )
        if details.get("name"):
            return Missing(f"cannot {what}: {plain.get('message')}", 404)
        return NoSuchKind(f"cannot {what}: the cluster does not know this kind of object", 404)
    if body.strip() == b"404 page not found":
        return NoSuchKind(f"cannot {what}: the cluster does not know this kind of object", 404)
    said = body[:300].decode(errors="replace").strip()
    return KubeError(
        f"cannot {what} for now: what answers is no API server; it says {said!r} (HTTP 404)", 404
    )


def _forbidden(said: str, what: str) -> KubeError:
    """403 stands for four things: no rights, a quota that is used up, a rule of the cluster, a namespace that ends."""
    if "exceeded quota" in said:
        return OverQuota(f"cannot {what} for now: {said}", 403)
    if "because it is being terminated" in said:
        return Forbidden(f"cannot {what}: {said}", 403)
    if _RIGHTS.search(said):
        return Forbidden(
            f"cannot {what}: {said}; grant it (docs/how-to/grant-rights.md has the roles for each engine)",
            403,
        )
    return Invalid(f"the cluster refuses to {what}: {said}", 403)


#: What every authorizer says, of whatever maker.
_RIGHTS = re.compile(r"\bcannot \w+ (resource|path)\b")


def _status(body: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(body)
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}
