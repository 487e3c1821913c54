"""The commands that look at a run, and those that ask it for something, against one live run and what it leaves."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.status_document import STATUS_VERSION
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.events import event_from_dict
from airflow_elastic.spec.layout import CHECKPOINT_DATA, checkpoint_data
from tests.support.cli import COMMAND, COUNT, HOLD, Shell, ended
from tests.support.machine.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "my runs"
    folder.mkdir()
    shell = Shell(folder)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A run that was asked for a checkpoint and for another worker while it trained, then stopped by `stop`."""
    shell = Shell(tmp_path_factory.mktemp("a run"))
    words = ("--workers", 1, "--max", 2, "--every-steps", 10, "--keep", 50, "--uri", shell.uri)
    process = shell.start("run", *words, "--", HOLD, 5, shell.cwd / "never")
    until(lambda: Path(shell.uri, "checkpoints", "manifests").exists(), "the first checkpoint")

    saved = shell("checkpoint", shell.uri, "--wait")
    assert saved.returncode == 0, saved.stderr
    step = int(saved.stdout.removeprefix("checkpoint ").split()[0])
    assert step in checkpoints.steps(open_store(shell.uri))

    live = shell("status", shell.uri)
    assert "running" in live.stdout
    assert "node-0" in live.stdout
    assert shell.status()["controller"]["silent_seconds"] is None

    refused = shell("scale", shell.uri, 3)
    assert refused.returncode == 2
    assert "workers: given 3; allowed: an integer from 1 to 2" in refused.stderr
    asked = shell("scale", shell.uri, 2)
    assert asked.returncode == 0
    assert "asked for 2 workers; wanted so far: 1" in asked.stdout
    until(lambda: "1 | training from " in shell("logs", shell.uri).stdout, "the second worker")

    stopped = shell("stop", shell.uri, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.startswith("stopped at step ")
    assert ended(process)[0] == 1
    yield shell
    shell.close()


def test_what_has_ended_cannot_be_asked_for_anything(trained: Shell) -> None:
    for words in (("scale", trained.uri, 1), ("stop", trained.uri), ("checkpoint", trained.uri)):
        done = trained(*words)
        assert done.returncode == 2
        assert "has ended (stopped by " in done.stderr
        assert f"; `airflow-elastic run --uri {shlex.quote(trained.uri)}` carries it on" in done.stderr


def test_status_as_text_and_as_json(trained: Shell) -> None:
    told = trained("status", trained.uri).stdout
    assert "hold  stopped" in told
    assert "goodput " in told
    assert "no controller" not in told
    document = trained.status()
    assert document["version"] == STATUS_VERSION
    assert document["state"] == "stopped"
    assert document["workers"] == 2
    assert document["checkpoints"]["newest"]["step"] == document["step"]


def test_status_of_a_folder_lists_its_runs(trained: Shell) -> None:
    folder = Path(trained.uri).parent
    told = trained("status", folder).stdout.splitlines()
    assert told[0].split()[:3] == ["run", "state", "step"]
    assert [line.split("  ")[0] for line in told[1:]] == [Path(trained.uri).name]
    assert "  stopped  " in told[1]
    (run,) = json.loads(trained("status", folder, "--json").stdout)["runs"]
    assert (run["uri"], run["state"], run["workers"]) == (trained.uri, "stopped", 2)


def test_events_as_text_and_as_json(trained: Shell) -> None:
    told = trained("events", trained.uri).stdout
    lines = trained("events", trained.uri, "--json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    assert len(told.splitlines()) == len(entries)
    assert [entry["seq"] for entry in entries] == list(range(len(entries)))
    for line, entry in zip(told.splitlines(), entries, strict=True):
        assert line.endswith(f"  {entry.pop('sentence')}")
        # Nothing has gone wrong; on a busy machine a save may be left out.
        level = "WARNING" if entry["event"] == "SaveLeftOut" else "INFO"
        assert entry.pop("level") == level
        assert ("  WARNING  " in line) == (level == "WARNING")
        del entry["seq"]
        event_from_dict(entry)
    assert "scale step 1 → 2 workers asked for by" in told
    assert "checkpoint asked for by" in told


def test_a_reader_that_goes_away_is_no_error(trained: Shell) -> None:
    command = " ".join(f"'{word}'" for word in (*COMMAND, "events", trained.uri, "--json"))
    piped = ["bash", "-c", f"set -o pipefail; {command} | true"]
    done = subprocess.run(piped, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_logs_by_rank_and_attempt(trained: Shell) -> None:
    everything = trained("logs", trained.uri).stdout
    assert "0 | training from 0" in everything
    assert "1 | training from " in everything
    lines = trained("logs", trained.uri, "--rank", 0, "--attempt", 1).stdout.splitlines()
    assert next(line for line in lines if not line.startswith("airflow-elastic: ")) == "training from 0"
    for words, told in (
        (("--rank", 7), "no output of rank 7: there is output of 0, 1"),
        (("--attempt", 9), "no output of attempt 9: there is output of 1"),
    ):
        done = trained("logs", trained.uri, *words)
        assert done.returncode == 2
        assert told in done.stderr


def test_verify_and_prune(trained: Shell) -> None:
    store = open_store(trained.uri)
    all_steps = checkpoints.steps(store)
    assert len(all_steps) >= 3
    whole = json.loads(trained("verify", trained.uri, "--json").stdout)
    assert whole["ok"]
    assert [found["step"] for found in whole["checkpoints"]] == all_steps
    assert checkpoint_retention.verified(store) == all_steps[-1]

    damaged = checkpoints.read(store, all_steps[1]).files[0]
    path = Path(trained.uri, damaged.key)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    told = trained("verify", trained.uri)
    assert told.stderr == "", "of what a terminal is shown nothing is left elsewhere"
    assert told.returncode == 1
    assert f"checkpoint {all_steps[1]}: DAMAGED\n  {damaged.key} has another crc64nvme" in told.stdout
    assert f"a restart goes on from {all_steps[-1]}" in told.stdout
    assert not json.loads(trained("verify", trained.uri, "--json").stdout)["ok"]

    # What an ended attempt has left; and what the newest needs, which has to stay.
    leftover = f"{checkpoint_data(7777, 1, 1)}__0_0.distcp"
    store.put(leftover, b"x" * 10)
    dry = trained("prune", trained.uri, "--keep", 2, "--dry-run")
    assert f"would remove {len(all_steps) - 2} checkpoints: {all_steps[0]}, " in dry.stdout
    assert "would remove 1 file that no checkpoint needs, 10 B" in dry.stdout
    assert checkpoints.steps(store) == all_steps
    assert trained("pin", trained.uri, all_steps[0]).returncode == 0
    unknown = trained("pin", trained.uri, 7)
    assert unknown.returncode == 2
    assert f"step 7 has no committed checkpoint; there are: {all_steps[0]}, " in unknown.stderr
    assert trained("prune", trained.uri, "--keep", 2).returncode == 0
    assert checkpoints.steps(store) == [all_steps[0], *all_steps[-2:]]
    assert trained("pin", trained.uri, all_steps[0], "--remove").returncode == 0
    assert trained("prune", trained.uri, "--keep", 2).returncode == 0
    assert checkpoints.steps(store) == all_steps[-2:]
    assert store.get(leftover) is None
    kept = {file.key for step in all_steps[-2:] for file in checkpoints.read(store, step).files}
    assert {entry.key for entry in store.list(CHECKPOINT_DATA)} == kept

    # Where the newest has lost a file, the one before it is all there is: it is not taken away.
    store.delete([checkpoints.read(store, all_steps[-1]).files[0].key])
    refused = trained("prune", trained.uri, "--keep", 1)
    assert refused.returncode == 2
    assert "nothing was removed, as what would stay" in refused.stderr
    assert checkpoints.steps(store) == all_steps[-2:]
    assert trained("verify", trained.uri).returncode == 1
    assert checkpoint_retention.verified(store) == all_steps[-2], "it stays, whoever asks for fewer"
    assert trained("prune", trained.uri, "--keep", 1).returncode == 0
    assert checkpoints.steps(store) == all_steps[-2:]


def test_a_run_that_nobody_drives_is_told_so(shell: Shell) -> None:
    process = shell.start(*shell.count(1, shell.cwd / "go"))
    until(shell.counted, "the rank to count")
    process.kill()
    process.wait()
    status = Path(shell.uri, "status.json")
    document = json.loads(status.read_text())
    status.write_text(json.dumps({**document, "at": document["at"] - 3600}))  # an hour passes
    told = shell("status", shell.uri).stdout
    assert "no controller has written for 1 h 00 m" in told
    assert f"carry it on with `airflow-elastic run --uri '{shell.uri}'`" in told
    assert shell.status()["controller"]["silent_seconds"] > 3500
    asked = shell("stop", shell.uri)
    assert asked.returncode == 0
    assert "no controller has written" in asked.stderr
    assert "it is done when its controller reads it (it last wrote 1 h 00 m ago)" in asked.stdout
    # One whose owner is a task instance is Airflow's to carry on.
    journal, task = Journal(open_store(shell.uri)), "01975f0e-3c1a-7d0e-9b7e-0123456789ab"
    assert journal.append(len(journal.read()), ev.OwnerChanged(1.0, task))
    told = shell("status", shell.uri).stdout
    assert "it belongs to a task of Airflow. Start a triggerer there" in told
    assert "takes it from the task, which then cannot stop it" in told
    waited = shell("stop", shell.uri, "--wait", "--timeout", "0.5")
    assert waited.returncode == 1
    assert "waited 0.5 s for its end without success; the request stands" in waited.stderr


def test_workers_that_wait_are_told_apart_from_workers_that_run(shell: Shell) -> None:
    """By `run` in its story, by `status` as text and as JSON. Nothing is journaled of it."""
    words = (
        "--engine",
        "airflow_elastic.testing.fake_engine:FakeEngine",
        "--engine-option",
        "waiting=queued",
    )
    process = shell.start(*shell.count(1, shell.cwd / "go", options=(*words, "--workers", 3)))
    until(lambda: Path(shell.uri, "status.json").exists(), "the run")
    document = until(lambda: (found := shell.status())["waiting"] and found, "the workers to be queued")
    assert document["waiting"] == {"state": "queued", "workers": 3, "of": 3, "reason": None}
    assert (document["state"], document["attempts"][0]["phase"]) == ("queued", "live")
    told = shell("status", shell.uri).stdout
    assert "count  queued  " in told
    assert "all 3 workers are queued" in told
    assert "queued" not in shell("events", shell.uri).stdout
    stopped = shell("stop", shell.uri, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert shell.status()["waiting"] is None
    code, story = ended(process)
    assert code == 1
    assert story.count("attempt 1: all 3 workers are queued") == 1


def test_render_prints_what_would_be_sent_and_creates_nothing(shell: Shell) -> None:
    spec = {"command": [COUNT], "workers": {"count": 2}, "env": {"A": "1"}}
    (shell.cwd / "count.yaml").write_text(yaml.safe_dump(spec))
    done = shell("render", "--engine", "local", "count.yaml")
    assert done.returncode == 0, done.stderr
    manifest = yaml.safe_load(done.stdout)
    assert manifest["job"]["spec"]["workers"]["count"] == 2
    assert manifest["job"]["run_uri"] == str(shell.cwd / "elastic-runs" / "count")
    assert manifest["members"] == [0, 1]
    assert shell("render", "count.yaml").stdout == done.stdout
    assert [path.name for path in shell.cwd.iterdir()] == ["count.yaml"]


def test_doctor_and_version(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)  # tests of faults may have its API server down
    done = shell("doctor", "a folder", "--json")
    assert done.returncode == 0, done.stdout
    found = {line["subject"]: line for line in json.loads(done.stdout)["findings"]}
    assert found["run URI"]["ok"]
    assert {"python", "torch", "engine local: processes", "launcher torchrun"} <= found.keys()
    (shell.cwd / "file").touch()
    unfit = shell("doctor", "file")
    assert unfit.returncode == 1
    assert "✗ run URI" in unfit.stdout
    assert shell("--version").stdout.startswith("airflow-elastic, version ")


def test_it_needs_neither_airflow_nor_torch_nor_a_client() -> None:
    code = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('airflow', 'torch', 'numpy', 'boto3', 'kubernetes_asyncio'):\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import airflow_elastic.cli.main as cli\n"
        "cli.main(['run', '--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Drive a run to its end" in done.stdout
