"""Reads many ranges of the same objects from S3, with one signature for each object.

For each call botocore resolves the endpoint, signs, and parses the answer. That takes some two milliseconds of a
processor, as long as to fetch two megabytes. A rank that restores the state of another number of ranks makes hundreds
of such requests.

The signature is in the URL, and holds for a while and for one object. urllib3 logs URLs, and is kept from logging
these.
"""

from __future__ import annotations

import logging
import re
import time
from http.client import HTTPException
from typing import Any

from airflow_elastic.adapters.storage.s3.errors import is_client_error
from airflow_elastic.adapters.storage.s3.stream import ask

log = logging.getLogger(__name__)

#: How long a signature holds, and how long it is used: credentials may last only an hour.
_HOLDS_SECONDS, _USED_SECONDS = 900, 300.0

#: How long only botocore is used, after a signature was refused or there was no answer.
_REST_SECONDS = 300.0

_MOST = 1000  # the most signatures to keep

#: Answers about the object, or about a bad moment. They do not mean that the server refuses such signatures.
_MEANT = frozenset({404, 408, 412, 416, 429})

_NEVER = float("-inf")


class Ranges:
    """Does the same as `s3_stream.ask`, and faster if possible. Safe to use from several threads."""

    def __init__(self) -> None:
        self._urls: dict[tuple[str, str], tuple[float, str]] = {}
        self._rests_until = _NEVER
        for name in ("connection", "connectionpool", "util.retry"):
            logging.getLogger(f"urllib3.{name}").addFilter(_cut_signatures)

    def __call__(self, client: Any, where: dict[str, str]) -> dict[str, Any]:
        """The answer to a request for a range of an object. Raises the errors of the client, after several tries."""
        rests = time.monotonic() < self._rests_until
        return (None if rests else self._quick(client, where)) or ask(client, where)

    def _quick(self, client: Any, where: dict[str, str]) -> dict[str, Any] | None:
        """None unless bytes have come: botocore then repeats the request and explains the error."""
        from botocore.awsrequest import AWSRequest
        from botocore.response import StreamingBody

        try:
            # Not in botocore's public interface, but only this has its certificates and proxies.
            session = client._endpoint.http_session
        except AttributeError:
            self._rest("it is another client")
            return None
        headers = {"Range": where["Range"], "User-Agent": client.meta.config.user_agent}
        if "IfMatch" in where:
            headers["If-Match"] = where["IfMatch"]
        try:
            url = self._url(client, where["Bucket"], where["Key"])
            answer = session.send(AWSRequest("GET", url, headers=headers, stream_output=True).prepare())
            if answer.status_code not in (200, 206):
                _ = answer.content  # the connection is then free for others
                if answer.status_code in _MEANT or answer.status_code >= 500:
                    return None
                self._rest(f"the server answers {answer.status_code}")
                return None
        except Exception as exc:
            if not is_client_error(exc):
                raise
            self._rest(type(exc).__name__)
            return None
        about = answer.headers
        known = {"ETag": about.get("ETag"), "ContentRange": about.get("Content-Range")}
        plain = getattr(answer.raw, "_original_response", None)
        body: Any = StreamingBody(answer.raw, about.get("Content-Length"))
        if hasattr(plain, "readinto"):
            body = Body(answer.raw, plain)
        return {"Body": body, **{name: value for name, value in known.items() if value}}

    def _rest(self, why: str) -> None:
        self._urls, self._rests_until = {}, time.monotonic() + _REST_SECONDS
        log.info(
            "signed URLs are not used for %.0f s (%s): each range is asked for by itself", _REST_SECONDS, why
        )

    def _url(self, client: Any, bucket: str, key: str) -> str:
        now = time.monotonic()
        until, url = self._urls.get((bucket, key), (_NEVER, ""))
        if now >= until:
            asked = {"Bucket": bucket, "Key": key}
            url = client.generate_presigned_url("get_object", Params=asked, ExpiresIn=_HOLDS_SECONDS)
            if len(self._urls) >= _MOST:
                self._urls = {}
            self._urls[bucket, key] = (now + _USED_SECONDS, url)
        return url


class Body:
    """The bytes of an answer, straight from the socket into their place: urllib3 would copy them twice.

    Args:
        answer: urllib3's.
        plain: the answer of Python's own library within it.
    """

    def __init__(self, answer: Any, plain: Any) -> None:
        self._answer, self._plain, self._left = answer, plain, plain.length
        self._done = False

    def readinto(self, room: memoryview) -> int:
        """Fill `room` with the bytes so far; returns how many, 0 at the end. Raises the errors of botocore's body."""
        from botocore.exceptions import ResponseStreamingError

        try:
            count = int(self._plain.readinto(room))
            if not count and len(room) and self._left:
                raise ConnectionError(f"{self._left} bytes of the answer have not come")
        except (OSError, HTTPException) as exc:
            raise ResponseStreamingError(error=exc) from exc
        if self._left is not None:  # it is None where the server sends chunks
            self._left -= count
        if not count or self._left == 0:
            self._done = True
            self._answer.release_conn()
        return count

    def read(self, size: int) -> bytes:
        """The next bytes."""
        room = bytearray(size)
        return bytes(room[: self.readinto(memoryview(room))])

    def close(self) -> None:
        """Release the connection. Others can use it if the answer has been read to its end."""
        if not self._done:
            self._answer.close()


def use_signed_urls(client: Any) -> None:
    """Let a client sign URLs in the same way as requests: botocore uses another signature and host for them."""
    client.meta.events.register("choose-signer.s3.GetObject", _signs_as_always)
    client.meta.events.register("before-parameter-build.s3.GetObject", _goes_to_its_region)


def _signs_as_always(signature_version: Any, **_: Any) -> str | None:
    return "s3v4-query" if signature_version == "v4-query" else None


def _goes_to_its_region(context: dict[str, Any], **_: Any) -> None:
    context.pop("use_global_endpoint", None)


class _CutSignatures(logging.Filter):
    """Removes signatures from logged URLs, because they allow reading."""

    _SECRET = re.compile(r"(X-Amz-(?:Signature|Security-Token|Credential)=)[^&\s'\")]*")

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                self._SECRET.sub(r"\1...", one) if isinstance(one, str) else one for one in record.args
            )
        return True


_cut_signatures = _CutSignatures()
