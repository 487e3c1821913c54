"""Files are read as kubectl reads them: the table was written by sigs.k8s.io/yaml 1.6, which it uses (`YAMLToJSON`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.main import cli, main
from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.engines.kube.manifests.yaml_files import read_documents
from airflow_elastic.spec.errors import InvalidInput, SpecError

WORDS: dict[str, Any] = {
    "2026-01-01": "2026-01-01",
    "2026-01-01T10:00:00Z": "2026-01-01T10:00:00Z",
    "2001-12-14 21:59:43.10 -5": "2001-12-14 21:59:43.10 -5",
    "!!timestamp 2026-01-01": "2026-01-01",
    "1e3": 1000,
    "12E8": 1200000000,
    "1.5e3": 1500,
    "1.": 1,
    "1.e3": 1000,
    "1e+3": 1000,
    "1e-7": 1e-7,
    "2.0": 2,
    "0x1F": 31,
    "-0x1F": -31,
    "0777": 511,
    "+0777": 511,
    "0o17": 15,
    "0O17": 15,
    "0b11": 3,
    "08": 8,
    "00": 0,
    "1_000": 1000,
    "1__0": 10,
    "0_7": 7,
    "_1": "_1",
    "+1": 1,
    ".5": 0.5,
    "+.5": 0.5,
    "-0": 0,
    "0.0": 0,
    "0.1": 0.1,
    "1:30": "1:30",
    "190:20:30": "190:20:30",
    "1e400": "1e400",
    "1e": "1e",
    "0x": "0x",
    "1,000": "1,000",
    "9223372036854775808": 2**63,
    "0xFFFFFFFFFFFFFFFF": 2**64 - 1,
    **dict.fromkeys(("y", "Y", "yes", "YES", "on", "On", "true", "True"), True),
    **dict.fromkeys(("n", "N", "no", "NO", "off", "Off", "false", "FALSE"), False),
    **dict.fromkeys(("~", "null", "Null", ""), None),
    "'5'": "5",
    "!!str 5": "5",
    "!!int '5'": 5,
    "!!float 1": 1,
    "!foo bar": "bar",
    "!!binary aGk=": "hi",
    "=": "=",
    "<<": "<<",
    "0.5Gi": "0.5Gi",
    "yEs": "yEs",
    "tRue": "tRue",
    "|\n  x\n  y": "x\ny\n",
    ">-\n  x\n  y": "x y",
}


def read(tmp_path: Path, content: str | bytes) -> list[Any]:
    path = tmp_path / "job.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [one.value for one in read_documents(path)]


@pytest.mark.parametrize("word", WORDS)
def test_words(tmp_path: Path, word: str) -> None:
    (found,) = read(tmp_path, f"a: {word}\n")
    assert found == {"a": WORDS[word]}
    assert type(found["a"]) is type(WORDS[word])
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1: a\ntrue: b\n1.5: c\n2026-01-01: d\n", [{"1": "a", "true": "b", "1.5": "c", "2026-01-01": "d"}]),
        ("on: a\n", [{"true": "a"}]),
        ("x: &b {a: 1}\nz: {<<: *b, c: 2}\n", [{"x": {"a": 1}, "z": {"a": 1, "c": 2}}]),
        ("x: &b {a: 1}\nz: {<<: *b, a: 3}\n", [{"x": {"a": 1}, "z": {"a": 3}}]),
        ("x: &b {a: 1}\nw: &c {a: 2}\nz: {<<: [*b, *c]}\n", [{"x": {"a": 1}, "w": {"a": 2}, "z": {"a": 1}}]),
        ("x: &b [1]\nz: *b\n", [{"x": [1], "z": [1]}]),
        ("a:\tb\t# c\n", [{"a": "b"}]),
        ("\ufeffa: 1\r\nb: 2\r\n", [{"a": 1, "b": 2}]),
        ('{\n\t"a": 1,\n\t"b": ["\\/", "\\u00e9"]\n}\n', [{"a": 1, "b": ["/", "é"]}]),
        ("# only\n", []),
        ("", []),
        ("---\n---\na: 1\n---\n# none\n---\nb: 2\n...\n", [{"a": 1}, {"b": 2}]),
    ],
)
def test_documents(tmp_path: Path, text: str, values: list[Any]) -> None:
    assert read(tmp_path, text) == values


def test_other_encodings(tmp_path: Path) -> None:
    assert read(tmp_path, "a: é\n".encode("utf-16")) == [{"a": "é"}]


#: A few lines that would be a million values.
LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 6)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spec:\n  a: 1\n  b: 2\n  a: 3\n", "spec.a is given twice, in lines 2 and 4"),
        ("spec: {a: 1, a: 2}\n", "spec.a is given twice, in lines 1 and 1"),
        ("spec:\n- x: {'1': a,\n  1: b}\n", "spec.0.x.1 is given twice, in lines 2 and 3"),
        ("x: &b {a: 1}\nz: {a: 3, <<: *b}\n", "line 2: z.a is given before `<<`"),
        ("a:\n\tb: 1\n", "line 2, column 1: found character"),
        ("a: .nan\n", "line 1: a: given .nan; allowed: a finite number"),
        ("a: [1, -.inf]\n", "line 1: a.1: given -.inf"),
        ("a: &x [*x]\n", "a.0 contains itself"),
        ("? [a]\n: b\n", "is no word"),
        ("null: a\n", "is no word"),
        ("a: *x\n", "found undefined alias"),
        ("a: !!bool 5\n", "'5' is not true or false"),
        ("a: b: c\n", "mapping values are not allowed"),
        (LAUGHS, "more than 50000 values"),
        ("[" * 900, "nested too deeply"),
        (b"a: \xff\n", "no YAML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str | bytes, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, text)
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "job.yaml"))


# -- several objects in a file -----------------------------------------------------------------------------------------

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: %s, annotations: {built: 2026-01-01}}
spec:
  template:
    spec:
      containers:
      - {name: t, image: "i:1", command: [python, t.py]}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: fit}\nspec: {ports: [{port: 1}]}\n"


def write(tmp_path: Path, *documents: str) -> Path:
    path = tmp_path / "all.yaml"
    path.write_text("---\n".join(documents))
    return path


def test_the_one_that_can_be_run_is_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = from_manifest(write(tmp_path, SERVICE, JOB % "fit", "# nothing\n"))
    assert spec.name == "fit"
    assert spec.engine_options["annotations"] == {"built": "2026-01-01"}
    assert "Service fit" in caplog.text


def test_of_several_one_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, JOB % "one", JOB % "two", SERVICE)
    with pytest.raises(InvalidInput, match="3 documents: Job one, Job two, Service fit: say which"):
        from_manifest(path)
    assert from_manifest(path, name="two").name == "two"
    with pytest.raises(InvalidInput, match="wanted is Job three"):
        from_manifest(path, kind="Job", name="three")
    with pytest.raises(InvalidInput, match="say which"):
        from_manifest(path, kind="job")


def test_a_list_is_its_items(tmp_path: Path) -> None:
    items = [yaml.load(one, yaml.BaseLoader) for one in (JOB % "one", JOB % "two")]
    whole = {"apiVersion": "v1", "kind": "List", "items": items}
    assert from_manifest(whole, name="one").name == "one"
    path = tmp_path / "list.json"
    path.write_text(json.dumps(whole, indent="\t"))
    assert from_manifest(path, name="two").name == "two"


@pytest.mark.parametrize(
    ("api", "kind", "advice"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", "queueing: volcano"),
        ("kubeflow.org/v2beta1", "MPIJob", "torchrun"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "a Job with the pod"),
        ("v1", "Pod", "a Job with this pod"),
        ("apps/v1", "Deployment", "a Job with this pod"),
    ],
)
def test_kinds_that_are_no_run(api: str, kind: str, advice: str) -> None:
    with pytest.raises(SpecError, match=advice):
        from_manifest({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": {}})


@pytest.mark.parametrize(
    "value", [[], "x", 5, {}, {"kind": 5}, {"apiVersion": ["v1"], "kind": {"a": 1}}, {"items": 1}]
)
def test_what_is_no_manifest(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InvalidInput):
        from_manifest(path)


def test_a_manifest_is_rendered(tmp_path: Path) -> None:
    path = write(tmp_path, SERVICE, JOB % "fit", JOB % "other")
    shown = CliRunner().invoke(cli, ["render", "--object", "Job/fit", str(path)])
    assert shown.exit_code == 0, shown.output
    job = yaml.safe_load(shown.stdout)["items"][0]
    assert job["metadata"]["annotations"]["built"] == "2026-01-01"
    assert "read as a manifest, of Job fit; no part of the run" in shown.stderr
    assert "Service fit" in shown.stderr
    elsewhere = CliRunner().invoke(cli, ["render", "--engine", "trainjob", "--object", "/fit", str(path)])
    assert elsewhere.exit_code == 0, elsewhere.output
    assert yaml.safe_load(elsewhere.stdout)["items"][-1]["kind"] == "TrainJob"


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


def test_of_several_objects_that_one_is_run_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that pods do not see it is refused, without a cluster and before anything is written."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    path, uri = write(tmp_path, SERVICE, JOB % "fit", JOB % "other"), str(tmp_path / "run")
    assert typed("run", "--spec", str(path), "--object", "job/other", "--uri", uri) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "read as a manifest, of Job other" in said
    assert "workers on a cluster do not see it" in said
    assert Journal(open_store(uri)).read() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spec", "FILE"], "say which one is meant, by kind and name"),
        (["--spec", "FILE", "--object", "TrainJob/fit"], "wanted is TrainJob fit"),
        (["--object", "Job/fit", "--", "train.py"], "--object: given Job/fit; allowed: beside --spec"),
    ],
)
def test_nothing_is_run_of_objects_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    path = write(tmp_path, JOB % "fit", JOB % "other")
    given = [str(path) if word == "FILE" else word for word in words]
    assert typed("run", "--uri", str(tmp_path / "run"), *given) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_date_in_a_specification_is_text(tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    template = "pod_template: {metadata: {annotations: {built: 2024-05-01, at: 2024-05-01T10:00:00Z}}}"
    path.write_text(
        f'name: fit\ncommand: [t.py]\nengine: job\nengine_options: {{image: "i:1", {template}}}\n'
    )
    shown = CliRunner().invoke(cli, ["render", str(path)])
    assert shown.exit_code == 0, shown.output
    annotations = yaml.safe_load(shown.stdout)["items"][0]["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["built"], annotations["at"]) == ("2024-05-01", "2024-05-01T10:00:00Z")
