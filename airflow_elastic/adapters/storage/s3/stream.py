"""Reads a range of an S3 object into memory of the caller. It retries, with backoff, if an answer breaks off."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.storage.s3.errors import is_answer_cut, is_client_error, is_missing, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = (
    8  # for failures that botocore does not repeat: a conflict between writers, an answer cut off in its body
)

_AT_ONCE = 1 << 20


def ask(client: Any, where: dict[str, str]) -> dict[str, Any]:
    """The answer to a request to get an object. Raises the errors of the client, after several tries.

    botocore does not repeat a request if its answer says that there is no such object or range, and breaks off.
    """
    for round_ in range(ROUNDS):
        try:
            return dict(client.get_object(**where))
        except Exception as exc:
            if not is_answer_cut(exc) or round_ == ROUNDS - 1:
                raise
        back_off(round_)
    raise AssertionError("unreachable: the last round returns or raises")


class Stream:
    """Bytes of an object, one after the other; none if there is no such object, or it is shorter.

    Args:
        client: gives a client of S3.
        where: bucket and key, and further parameters of the request.
        start: the first byte.
        size: how many bytes at most.
        first: a faster way to ask, used until it fails once.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        where: dict[str, str],
        start: int,
        size: int,
        first: Callable[[Any, dict[str, str]], dict[str, Any]] = ask,
    ) -> None:
        self._client, self._where, self._ask = client, where, first
        self._at, self._end = start, start + size
        self._body: Any = None
        self._skip = 0  # bytes to skip in the body, if the server has sent more than was asked for

    def readinto(self, room: memoryview) -> int:
        """Fill `room` with the next bytes, as far as they have come; returns how many, 0 at the end.

        Raises the errors of the client, after several tries; also if the object has been replaced meanwhile, or does
        not match its checksum.
        """
        room = room[: self._end - self._at]
        for left in reversed(range(ROUNDS)):
            if not len(room) or not self._open():
                return 0
            try:
                self._skip_some()
                count = int(self._body.readinto(room))
                if self._at + count == self._end:
                    self._body.read(1)  # a wrong checksum is only reported to a further read
            except Exception as exc:
                if not is_client_error(exc) or not left or type(exc).__name__ == "FlexibleChecksumError":
                    raise
                self.close()
                self._ask = ask
                back_off(ROUNDS - 1 - left)
                continue
            self._at += count
            return count
        raise AssertionError("unreachable: the last round returns or raises")

    def close(self) -> None:
        """Release the connection."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _open(self) -> bool:
        """Make sure that there is a body to read from; returns whether there is one."""
        if self._body is not None:
            return True
        try:
            answer = self._ask(self._client(), {**self._where, "Range": f"bytes={self._at}-{self._end - 1}"})
        except Exception as exc:
            if is_missing(exc) or status_of(exc) == 416:  # the object ends before that
                return False
            raise
        self._body = answer["Body"]
        if "ETag" in answer:  # all further bytes must be of the same object
            self._where = {**self._where, "IfMatch": answer["ETag"]}
        self._skip = 0 if "ContentRange" in answer else self._at  # the server knows no ranges
        return True

    def _skip_some(self) -> None:
        while self._skip:
            count = len(self._body.read(min(self._skip, _AT_ONCE)))
            self._skip = self._skip - count if count else 0


def back_off(round_: int) -> None:
    """Wait before the next round: up to 0.05 s at first, up to 2 s later, at random so that rivals separate."""
    time.sleep(random.uniform(0.0, min(2.0, 0.05 * 2**round_)))
