"""A range of an object comes whole and of one version, whatever breaks off; or an error comes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from botocore.exceptions import ClientError, FlexibleChecksumError, ResponseStreamingError

from airflow_elastic.adapters.storage.s3 import stream as s3_stream
from airflow_elastic.adapters.storage.s3.stream import Stream


class Broken(io.BytesIO):
    """A body that breaks off behind so many bytes, or has a wrong checksum at its end."""

    def __init__(self, data: bytes, after: int | None = None, wrong: bool = False) -> None:
        super().__init__(data)
        self.after, self.wrong = after, wrong

    def readinto(self, room: Any) -> int:
        if self.after is not None and self.tell() >= self.after:
            raise ResponseStreamingError(error="reset")
        return super().readinto(room[: len(room) if self.after is None else self.after - self.tell()])

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data and self.wrong:
            raise FlexibleChecksumError(error_msg="it is another one")
        return data


class Server:
    """Gives what it is told to, one answer after the other; knows conditions."""

    def __init__(self, *answers: tuple[bytes, str, dict[str, Any]]) -> None:
        self.answers, self.asked = list(answers), 0

    def get_object(self, *, Range: str, IfMatch: str | None = None, **_: Any) -> dict[str, Any]:  # noqa: N803
        data, tag, how = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if IfMatch not in (None, tag):
            error = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
            raise ClientError(error, "GetObject")  # type: ignore[arg-type]
        first, last = Range.removeprefix("bytes=").split("-")
        return {"Body": Broken(data[int(first) : int(last) + 1], **how), "ETag": tag, "ContentRange": Range}


def read(server: Server, start: int, size: int) -> bytes:
    stream, room, at = Stream(lambda: server, {}, start, size), memoryview(bytearray(size)), 0
    while count := stream.readinto(room[at:]):
        at += count
    return bytes(room[:at])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_stream, "back_off", lambda round_: None)


def test_it_goes_on_where_an_answer_breaks_off() -> None:
    data = bytes(range(100))
    server = Server((data, "a", {"after": 10}), (data, "a", {"after": 10}), (data, "a", {}))
    assert read(server, 5, 60) == data[5:65]
    assert server.asked == 3


def test_it_is_never_a_mixture_of_two_objects() -> None:
    server = Server((b"old" * 10, "a", {"after": 10}), (b"new" * 10, "b", {}))
    with pytest.raises(ClientError, match="PreconditionFailed"):
        read(server, 0, 30)


def test_a_wrong_checksum_is_not_read_over() -> None:
    with pytest.raises(FlexibleChecksumError):
        read(Server((b"x" * 30, "a", {"wrong": True})), 0, 30)


def test_one_that_breaks_off_for_ever_is_given_up() -> None:
    with pytest.raises(ResponseStreamingError):
        read(Server((b"x" * 30, "a", {"after": 0})), 0, 30)
