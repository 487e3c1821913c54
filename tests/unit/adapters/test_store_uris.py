"""Which URIs name a store, which keys it takes, and that errors show no secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.keys import RESERVED, check_key, check_prefix, scrub
from airflow_elastic.adapters.storage.open import describe, open_store
from airflow_elastic.adapters.storage.s3.errors import store_error
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec.errors import InvalidInput, StoreError, StoreUnfit


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/mnt/runs/a", "/mnt/runs/a"),
        ("/mnt//runs/./x/../a/", "/mnt/runs/a"),
        ("/mnt/100% sure#1?", "/mnt/100% sure#1?"),
        ("file:///mnt/runs/a/", "/mnt/runs/a"),
        ("FILE:///mnt/my%20runs/%C3%B6", "/mnt/my runs/ö"),
        ("file://localhost/mnt/a", "/mnt/a"),
        ("file:/mnt/a", "/mnt/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/runs/a b/", "s3://bucket/runs/a b"),
        ("S3://my.bucket-1/r", "s3://my.bucket-1/r"),
    ],
)
def test_uris_are_normalised(given: str, uri: str) -> None:
    store = open_store(given)
    assert store.uri == uri
    assert isinstance(store, S3Store if uri.startswith("s3:") else FolderStore)
    assert open_store(store.uri).uri == uri, "what a store calls itself opens it again"


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert open_store("runs/a").uri == str(tmp_path / "runs/a")
    assert open_store("a:b").uri == str(tmp_path / "a:b")
    assert open_store("~/runs").uri == "/home/me/runs"
    assert list(tmp_path.iterdir()) == [], "opening touches nothing"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("/a\0b", "NUL"),
        ("~no-such-user/runs", "no user 'no-such-user'"),
        ("file://server/share", "three slashes"),
        ("file://relative", "three slashes"),
        ("s3://", "no valid bucket"),
        ("s3:///prefix", "no valid bucket"),
        ("s3://user:pass@bucket/x", "no valid bucket"),
        ("s3://bucket/a//b", "part ''"),
        ("s3://bucket/../b", "part '..'"),
        ("s3:/bucket/x", "start with s3://"),
        ("s3a://bucket/x", "start with s3://"),
        ("gs://bucket/x", "no store for gs://"),
        ("https://user:pass@host/x", "no store for https://"),
    ],
)
def test_other_uris_are_refused_with_what_is_allowed(given: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        open_store(given)
    said = str(refusal.value)
    assert why in said
    assert "s3://bucket/prefix" in said
    assert "pass" not in said
    report = describe(given)
    assert (report.fit, report.kind, report.detail) == (False, "", said)


def test_describe_reports_a_good_folder(tmp_path: Path) -> None:
    report = describe(str(tmp_path))
    assert (report.uri, report.kind, report.endpoint, report.fit) == (str(tmp_path), "folder", "", True)


def test_keys_are_limited_to_what_every_store_takes() -> None:
    for good in ("a", "a/b", ".metadata", "a..b", "x" * 255, "/".join(["y" * 99] * 9)):
        assert check_key(good) == good
    for bad in ("x" * 256, "ö" * 128, "/".join(["y" * 100] * 9), "a\nb", "a\\b", "\ud800", f"a/{RESERVED}1"):
        with pytest.raises(InvalidInput, match="cannot be the key"):
            check_key(bad)
    for prefix in ("", "a", "a/", "a/.", "a/..", ".elastic"):
        assert check_prefix(prefix) == prefix
    for bad in ("/", "/a", "../", "a//", "a/../b", "a\0"):
        with pytest.raises(InvalidInput, match="cannot be the prefix"):
            check_prefix(bad)


def test_nothing_secret_is_quoted() -> None:
    assert scrub("http://me:p@ss@host:9000/x and s3://b") == "http://***@host:9000/x and s3://b"
    assert scrub("key AKIAIOSFODNN7EXAMPLE is wrong") == "key *** is wrong"
    strange = RuntimeError("http://me:secret@host said ASIAIOSFODNN7EXAMPLE")
    said = str(store_error(strange, "s3://b/p", "b", "http://host", "read", "k"))
    assert "secret" not in said
    assert "EXAMPLE" not in said


@pytest.mark.parametrize(
    ("code", "status", "kind", "says"),
    [
        ("NoSuchBucket", 404, StoreUnfit, "aws s3 mb s3://bucket"),
        ("AccessDenied", 403, StoreUnfit, "grant these credentials s3:GetObject"),
        ("403", 403, StoreUnfit, "grant these credentials"),
        ("SomethingNew", 403, StoreUnfit, "grant these credentials"),
        ("ExpiredToken", 400, StoreUnfit, "renew them"),
        ("PermanentRedirect", 301, StoreUnfit, "AWS_DEFAULT_REGION"),
        ("NotImplemented", 501, StoreUnfit, "use Amazon S3"),
        ("SlowDown", 503, StoreError, "try again later"),
        ("SomethingNew", 400, StoreError, "words of the server"),
    ],
)
def test_codes_of_servers_have_sentences(code: str, status: int, kind: type[StoreError], says: str) -> None:
    from botocore.exceptions import ClientError

    answer = {
        "Error": {"Code": code, "Message": "words of the server"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error = store_error(
        ClientError(answer, "GetObject"), "s3://bucket/p", "bucket", "http://host", "read", "k"
    )
    assert type(error) is kind
    assert says in str(error)
    assert str(error).startswith("s3://bucket/p at http://host: cannot read 'k': ")


def test_boto3_is_imported_only_when_it_is_needed(tmp_path: Path) -> None:
    """The training side uses folders without it; where it is missing, the error says what to install."""
    script = (
        "import sys; sys.modules['boto3'] = sys.modules['botocore'] = None\n"
        "from airflow_elastic.adapters.storage.open import describe\n"
        "print(describe(sys.argv[1]).fit)\n"
        "print(describe('s3://bucket/x').detail)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )
    fit, detail = done.stdout.splitlines()
    assert fit == "True"
    assert "pip install 'airflow-elastic[s3]'" in detail
