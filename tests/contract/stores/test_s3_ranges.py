"""Ranges of an object are read with one signature for all of them, or as botocore does it, whatever the server says."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ResponseStreamingError
from botocore.httpsession import URLLib3Session

from airflow_elastic.adapters.storage.s3 import ranges as s3_ranges
from airflow_elastic.adapters.storage.s3.client import Clients
from airflow_elastic.adapters.storage.s3.ranges import Ranges
from airflow_elastic.adapters.storage.s3.stream import Stream
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec.errors import StoreError, StoreUnfit
from tests.support import s3

DATA = bytes(range(256)) * 64
KEY = "checkpoints/data/a+b=c (1).bin"


@dataclass
class Watched:
    """A server that notes what it is asked for, and refuses what it is told to: with a status and a code, so often."""

    server: Any = None
    asked: list[str] = field(
        default_factory=list
    )  # the signatures of URLs; "" of a request that is signed itself
    refusal: tuple[int, str] = (0, "")
    of_urls: int = 0
    of_requests: int = 0

    def refuse(self, method: str, path: str, headers: HTTPMessage) -> tuple[int, str] | None:
        if method != "GET" or "Range" not in headers:
            return None
        signature = parse_qs(urlsplit(path).query).get("X-Amz-Signature", [""])[0]
        assert bool(signature) is ("Authorization" not in headers)
        self.asked.append(signature)
        left = "of_urls" if signature else "of_requests"
        if not getattr(self, left):
            return None
        setattr(self, left, getattr(self, left) - 1)
        return self.refusal


@pytest.fixture
def watched(s3_server: s3.S3Server) -> Iterator[Watched]:
    found = Watched()
    with s3.lesser_proxy(s3_server, refuse=found.refuse) as found.server:
        yield found


def stored(server: s3.S3Server) -> Store:
    store = server.store()
    store.put(KEY, DATA)
    return store


def read(store: Store, start: int, size: int, key: str = KEY) -> bytes:
    room, at = memoryview(bytearray(size)), 0
    with store.stream(key, start, size) as reader:
        while count := reader.readinto(room[at:]):
            at += count
    return bytes(room[:at])


def test_one_signature_does_for_an_object(watched: Watched) -> None:
    store = stored(watched.server)
    for start in range(0, len(DATA), 1000):
        assert read(store, start, 1000) == DATA[start : start + 1000]
    assert len(watched.asked) == 17
    assert len({*watched.asked}) == 1
    assert watched.asked[0]
    store.put("other", DATA[::-1])
    assert read(store, 10, 20, "other") == DATA[::-1][10:30]
    assert watched.asked[-1] not in ("", watched.asked[0]), "it is for that object alone"


@pytest.mark.parametrize(
    "refusal", [(403, "AccessDenied"), (400, "InvalidArgument"), (501, "NotImplemented")]
)
def test_a_server_that_takes_no_signed_urls_is_asked_as_ever(
    watched: Watched, refusal: tuple[int, str]
) -> None:
    store = stored(watched.server)
    watched.refusal, watched.of_urls = refusal, 100
    for start in (0, 100, 200):
        assert read(store, start, 50) == DATA[start : start + 50]
    signed = [*map(bool, watched.asked)]
    assert signed == ([True, False, False, False] if refusal[0] < 500 else [True, False] * 3)


@pytest.mark.parametrize("refusal", [(503, "SlowDown"), (429, "TooManyRequests"), (404, "NoSuchKey")])
def test_a_bad_moment_does_not_make_it_slow_for_good(watched: Watched, refusal: tuple[int, str]) -> None:
    store = stored(watched.server)
    watched.refusal, watched.of_urls = refusal, 1
    assert read(store, 0, 50) == DATA[:50]
    assert read(store, 50, 50) == DATA[50:100]
    assert [*map(bool, watched.asked)] == [True, False, True]


def test_what_is_not_there_is_nothing_and_no_trouble(watched: Watched) -> None:
    store = stored(watched.server)
    assert read(store, 0, 50, "none") == b""
    assert read(store, len(DATA), 50) == b""
    assert read(store, len(DATA) - 10, 50) == DATA[-10:]
    assert watched.asked[-1]


def test_no_error_tells_a_signature(watched: Watched) -> None:
    store = stored(watched.server)
    watched.refusal, watched.of_urls, watched.of_requests = (403, "AccessDenied"), 1, 1
    with pytest.raises(StoreUnfit, match="access is denied") as denied:
        read(store, 0, 50)
    assert "X-Amz" not in f"{denied.value!r}{denied.value.__cause__!r}"


def test_an_answer_that_breaks_off_is_asked_for_again_the_other_way(faults: s3.FaultProxy) -> None:
    store = stored(faults.server)
    faults.rules({"do": "cut", "method": "GET", "path": "checkpoints/", "count": 2})
    assert read(store, 0, len(DATA)) == DATA
    assert faults.hits() == [2]
    faults.rules({"do": "cut", "method": "GET", "path": "checkpoints/"})
    with pytest.raises(StoreError) as failed:
        read(store, 0, len(DATA))
    assert "X-Amz" not in f"{failed.value!r}{failed.value.__cause__!r}"


class Odd(BaseHTTPRequestHandler):
    """Answers with the range that is asked for, in one of several ways."""

    protocol_version = "HTTP/1.1"
    how, connections = "plain", 0

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        whole = self.how == "whole"
        data = DATA if whole else DATA[first : last + 1]
        self.send_response(200 if whole else 206)
        self.send_header("ETag", "it")
        if not whole:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        if self.how == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(data), 700):
                piece = data[at : at + 700]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(data)))
        if self.how == "nonsense":
            self._headers_buffer.append(b"no header at all\r\n")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.how == "short" else data)
        self.close_connection = self.how == "short"

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[tuple[type[Odd], Any]]:
    """The server's answers, and a client for it."""
    handler = type("Handler", (Odd,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def get_object(**where: str) -> dict[str, Any]:
            raise AssertionError(f"it was asked for {where} in vain")

        client = SimpleNamespace(
            _endpoint=SimpleNamespace(http_session=URLLib3Session()),
            meta=SimpleNamespace(config=SimpleNamespace(user_agent="test")),
            generate_presigned_url=lambda *_, **__: f"http://127.0.0.1:{server.server_port}/it",
            get_object=get_object,
        )
        try:
            yield handler, client
        finally:
            client._endpoint.http_session.close()
            server.shutdown()
            thread.join()


def read_from(client: Any, start: int, size: int, ranges: Ranges) -> bytes:
    stream = Stream(lambda: client, {"Bucket": "b", "Key": "k"}, start, size, ranges)
    room, at = memoryview(bytearray(size)), 0
    with contextlib.closing(stream):
        while count := stream.readinto(room[at : at + 3000]):
            at += count
    return bytes(room[:at])


@pytest.mark.parametrize("how", ["plain", "chunked", "whole"])
def test_whatever_the_answer_looks_like_it_is_what_was_asked_for(
    how: str, odd: tuple[type[Odd], Any]
) -> None:
    handler, client = odd
    handler.how, ranges = how, Ranges()
    for start in range(0, 10000, 1000):
        assert read_from(client, start, 5000, ranges) == DATA[start : start + 5000]
    if how != "whole":  # of which nobody reads the end
        assert handler.connections == 1, "it is used again"


def test_no_log_tells_a_signature(odd: tuple[type[Odd], Any], caplog: pytest.LogCaptureFixture) -> None:
    handler, client = odd
    handler.how, sign = "nonsense", client.generate_presigned_url
    secret = "X-Amz-Credential=MINE&X-Amz-Security-Token=TO%2FKEN&X-Amz-Signature=abc0123"
    client.generate_presigned_url = lambda *_, **__: f"{sign()}?{secret}"
    for name in ("connection", "connectionpool"):  # which others may have quietened
        caplog.set_level(logging.DEBUG, logger=f"urllib3.{name}")
    assert read_from(client, 0, 100, Ranges()) == DATA[:100]
    told = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("urllib3"))
    assert "Failed to parse headers" in told
    assert told.count("X-Amz-Signature=...") >= 2
    assert not any(word in told for word in ("MINE", "KEN", "abc"))


def test_where_nobody_answers_it_is_not_tried_for_each_range(odd: tuple[type[Odd], Any]) -> None:
    _, client = odd
    asked: list[dict[str, str]] = []
    client.generate_presigned_url = lambda *_, **__: f"http://127.0.0.1:{s3.free_port()}/it"
    client.get_object = lambda **where: {"Body": asked.append(where) or "it"}
    sent, send = [], client._endpoint.http_session.send
    client._endpoint.http_session.send = lambda request: sent.append(request) or send(request)
    ranges, where = Ranges(), {"Bucket": "b", "Key": "k", "Range": "bytes=0-1"}
    for _ in range(3):
        assert ranges(client, where) == {"Body": "it"}
    assert (len(sent), len(asked)) == (1, 3)


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1", "eu-central-1", "cn-north-1", "us-gov-west-1"])
def test_signed_urls_go_where_requests_go(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    session = boto3.session.Session("key", "secret", region_name=region)
    client = Clients(session, bulk=True).get()
    hosts = []

    def answer(request: Any, **_: Any) -> Any:
        hosts.append(urlsplit(request.url).netloc)
        return AWSResponse(request.url, 200, {}, io.BytesIO())

    client.meta.events.register("before-send.s3", answer)
    client.get_object(Bucket="bucket", Key="a b")
    url = urlsplit(Ranges()._url(client, "bucket", "a b"))
    assert hosts == [url.netloc]
    assert f"%2F{region}%2Fs3%2F" in url.query


def test_what_is_given_up_in_the_middle_spoils_nothing(odd: tuple[type[Odd], Any]) -> None:
    handler, client = odd
    ranges = Ranges()
    for start in range(0, 3000, 1000):
        stream = Stream(lambda: client, {"Bucket": "b", "Key": "k"}, start, 9000, ranges)
        with contextlib.closing(stream):
            assert stream.readinto(memoryview(room := bytearray(10))) == 10
        assert room == DATA[start : start + 10]
        assert read_from(client, start, 5000, ranges) == DATA[start : start + 5000]
    assert handler.connections > 1


def test_an_answer_that_ends_too_soon_is_an_error_and_asked_for_again(odd: tuple[type[Odd], Any]) -> None:
    handler, client = odd
    handler.how = "short"
    answer = Ranges()(client, {"Bucket": "b", "Key": "k", "Range": "bytes=0-9999"})
    room = memoryview(bytearray(10000))
    assert answer["Body"].readinto(room) == 5000
    with pytest.raises(ResponseStreamingError, match="5000 bytes"):
        answer["Body"].readinto(room[5000:])
    answer["Body"].close()
    with pytest.raises(AssertionError, match=r"bytes=5000-9999.*in vain"):
        read_from(client, 0, 10000, Ranges())


def test_a_signature_is_renewed_long_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = [], SimpleNamespace(now=0.0)
    monkeypatch.setattr(s3_ranges, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def sign(_operation: str, *, Params: dict[str, str], ExpiresIn: int) -> str:  # noqa: N803 - botocore's names
        made.append((clock.now, Params["Key"], ExpiresIn))
        return f"http://{Params['Key']}/{clock.now}"

    ranges, client = Ranges(), SimpleNamespace(generate_presigned_url=sign)
    for clock.now in (0.0, 200.0, 299.0, 301.0, 500.0, 700.0):
        for key in "ab":
            ranges._url(client, "bucket", key)
    assert made == [(at, key, 900) for at in (0.0, 301.0, 700.0) for key in "ab"]


def test_a_client_of_another_kind_is_asked_as_ever() -> None:
    asked = []

    def get_object(**where: str) -> dict[str, Any]:
        asked.append(where)
        return {"Body": "it"}

    ranges, where = Ranges(), {"Bucket": "b", "Key": "k", "Range": "bytes=0-1"}
    for times in (1, 2):
        assert ranges(SimpleNamespace(get_object=get_object), where) == {"Body": "it"}
        assert asked == [where] * times
