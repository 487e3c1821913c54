"""The answers of an API server as errors: one class for each answer that needs its own treatment.

All are EngineErrors, and the controller waits until they pass. If waiting cannot help, the submission of a job also
raises SubmitRefused; see `is_final`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.spec.errors import EngineError


class KubeError(EngineError):
    """The API server could not be reached, or answered with an error.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        is_final: whether the same request would always get the same answer.
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
    """410: the server does not remember the version that a watch wants to begin with. List again."""


class Invalid(KubeError):
    """400 or 422, refused by an admission plug-in, or in no namespace: the cluster does not accept the object."""

    is_final = True


class OverQuota(KubeError):
    """403: a quota of the namespace is used up. It passes when other objects have ended."""


class Forbidden(KubeError):
    """401 or 403: rights are missing, or the namespace is being removed."""

    is_final = True


def error_of(status: int, body: bytes, what: str) -> KubeError:
    """The error for an answer.

    Args:
        status: HTTP status, 400 or more.
        body: the answer; a Status object if the API server itself answers.
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


def named(error: KubeError, resource: Resource) -> KubeError:
    """The error, with what must be installed if the cluster does not know this kind of object."""
    if isinstance(error, NoSuchKind) and resource.needs:
        return NoSuchKind(
            f"{error}: {resource.full_name} comes with {resource.needs}; install that, or choose another engine",
            404,
        )
    return error


def parsed(data: bytes, what: str) -> dict[str, Any]:
    """The object in an answer. Raises KubeError if something else answers than an API server."""
    try:
        plain = json.loads(data)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        said = data[:200].decode(errors="replace")
        raise KubeError(f"cannot {what} for now: what answers is no API server; it says {said!r}")
    return plain


def _not_found(plain: dict[str, Any], body: bytes, what: str) -> KubeError:
    """The API server answers with a Status, or with four words of plain text; any other answer is from a proxy."""
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
    """403 has four meanings: no rights, a quota that is used up, a rule of the cluster, a namespace that ends."""
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


#: Every authorizer uses these words.
_RIGHTS = re.compile(r"\bcannot \w+ (resource|path)\b")


def _status(body: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(body)
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}
