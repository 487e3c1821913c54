"""Command lines of launchers whose programs need not be installed, and what surrounds Horovod's driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.launchers import DLROVER_RUN, HOROVODRUN, TORCHRUN, Place, find_launcher, launcher_names
from airflow_elastic.runtime.agent.shipped_script import with_script
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.testing.ports import free_port


def spec(launcher: str, *command: str, **changes: Any) -> RunSpec:
    return RunSpec(**{"command": command or ("train.py", "--lr", "1"), "launcher": launcher, **changes})


def place(rank: int = 0, nodes: int = 2) -> Place:
    return Place("py", rank, nodes, "10.0.0.1", 29500)


@pytest.mark.parametrize("launcher", [DLROVER_RUN, HOROVODRUN])
def test_they_are_found_by_name(launcher: Any) -> None:
    assert find_launcher(launcher.name) is launcher


def test_a_launcher_without_options_refuses_any() -> None:
    with pytest.raises(SpecError, match=r"launcher_options\.precheck"):
        TORCHRUN.refuse(spec("torchrun", launcher_options={"precheck": 1}))


@pytest.mark.parametrize("name", launcher_names())
def test_every_launcher_runs_the_file_that_the_worker_has_written(name: str, tmp_path: Path) -> None:
    """The command of the worker has the path of the file, then the arguments: the last words of any launcher."""
    run = spec(name, "fit.py", "--lr", "1", script="print()\n", workers=Workers(1))
    find_launcher(name).refuse(run)
    record = JobRecord("job", str(tmp_path), 1, run, run.digest, "", "py")
    node = Worker(JobFiles(tmp_path), record, 0, open_store(str(tmp_path)))
    written = with_script(node)
    path = tmp_path / "script" / "fit.py"
    assert find_launcher(name).command(written, place(nodes=1))[-3:] == [str(path), "--lr", "1"]
    assert path.read_text() == "print()\n"
    assert with_script(node) == written
    path.parent.chmod(0o777)
    with pytest.raises(InvalidInput, match="no folder of this user alone"):
        with_script(node)


# -- dlrover-run -------------------------------------------------------------------------------------------------------

DLROVER = ["py", "-P", "-m", "dlrover.trainer.torch.elastic_run"]
ELASTIC = {"engine": "elasticjob", "workers": Workers(2, min=2, max=4, procs=8, node_unit=2)}


def test_dlrover_run_meets_at_the_master() -> None:
    run = spec("dlrover-run", **ELASTIC)
    DLROVER_RUN.refuse(run)
    assert DLROVER_RUN.command(run, place(1)) == [
        *DLROVER,
        *("--nnodes=2", "--node_rank=1", "--nproc_per_node=8", "--max_restarts=0", "--node_unit=2"),
        *("train.py", "--lr", "1"),
    ]


def test_dlrover_run_alone() -> None:
    run = spec("dlrover-run", "-m", "pkg.train")
    DLROVER_RUN.refuse(run)
    assert DLROVER_RUN.command(run, place(nodes=1)) == [
        *DLROVER,
        *("--standalone", "--nnodes=1", "--node_rank=0", "--nproc_per_node=1", "--max_restarts=0"),
        *("--module", "pkg.train"),
    ]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"precheck": 0}, ["--precheck=0"]),
        ({"precheck": 2, "exclude_straggler": True}, ["--precheck=2", "--exclude_straggler"]),
        ({"auto_config": True, "auto_tunning": True}, ["--auto_config", "--auto_tunning"]),
        ({"save_at_breakpoint": True, "numa_affinity": True}, ["--save_at_breakpoint", "--numa_affinity"]),
        ({"accelerator": "ascend-npu"}, ["--accelerator=ascend-npu"]),
        ({"training_port": 61000}, ["--training_port=61000"]),
        ({"network_check": True, "comm_perf_test": True}, ["--network_check", "--comm_perf_test"]),
    ],
)
def test_dlrover_run_has_every_flag(options: dict[str, Any], flags: list[str]) -> None:
    run = spec("dlrover-run", engine="elasticjob", launcher_options=options)
    DLROVER_RUN.refuse(run)
    command = DLROVER_RUN.command(run, place())
    assert command[8 : 8 + len(flags)] == flags
    assert command[8 + len(flags) :] == ["train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"precheck": 3}, "precheck"),
        ({"accelerator": "tpu"}, "accelerator"),
        ({"training_port": 80}, "training_port"),
        ({"exclude_straggler": True}, "exclude_straggler"),
        ({"auto-config": True}, "auto-config"),
        ({"auto_config": "yes"}, "auto_config"),
    ],
)
def test_dlrover_run_refuses_bad_options(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        DLROVER_RUN.refuse(spec("dlrover-run", engine="elasticjob", launcher_options=options))
    assert [problem.path for problem in refused.value.problems] == [f"launcher_options.{path}"]


def test_dlrover_run_needs_a_master_for_several_workers() -> None:
    with pytest.raises(SpecError, match="elasticjob"):
        DLROVER_RUN.refuse(spec("dlrover-run", engine="job", workers=Workers(2)))


# -- horovodrun --------------------------------------------------------------------------------------------------------


def test_horovodrun_on_the_first_worker() -> None:
    options = {"reset_limit": 3, "elastic_timeout": 60, "ssh_port": 2223, "extra": ["--verbose"]}
    run = spec("horovodrun", workers=Workers(2, min=1, max=4, procs=2), launcher_options=options)
    HOROVODRUN.refuse(run)
    command = HOROVODRUN.command(run, place())
    ours, driver = command[: command.index("--")], command[command.index("--") + 1 :]
    assert ours[3:] == [
        "airflow_elastic.runtime.agent.horovod",
        "lead",
        "--lead=10.0.0.1:29500",
        "--slots=2",
        "--hosts=2",
    ]
    assert driver == [
        *("horovodrun", "-np", "4", "--min-np", "2", "--max-np", "8"),
        *("--host-discovery-script", "{discovery}", "--ssh-port", "2223"),
        *("--reset-limit", "3", "--elastic-timeout", "60", "--verbose"),
        *("py", "train.py", "--lr", "1"),
    ]


def test_horovodrun_on_the_others() -> None:
    command = HOROVODRUN.command(spec("horovodrun", workers=Workers(2)), place(1))
    assert command[4:] == [
        *("follow", "--lead=10.0.0.1:29500", "--slots=1", "--", "/usr/sbin/sshd", "-D", "-e", "-p", "2222")
    ]


@pytest.mark.parametrize("options", [{"reset_limit": 0}, {"ssh_port": 0}, {"sshd": []}, {"hosts": "a"}])
def test_horovodrun_refuses_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=f"launcher_options.{next(iter(options))}"):
        HOROVODRUN.refuse(spec("horovodrun", launcher_options=options))


def test_the_driver_finds_all_hosts_and_they_end_with_it(tmp_path: Path) -> None:
    """With a driver that asks the discovery script, as Horovod's does: none of it can be installed here."""
    ours = [sys.executable, "-P", "-m", "airflow_elastic.runtime.agent.horovod"]
    meeting = [f"--lead=127.0.0.1:{free_port()}", "--slots=2"]
    found = tmp_path / "found"
    driver = ["sh", "-c", f"sh $0 > {found}; exit 7", "{discovery}"]
    lead = subprocess.Popen([*ours, "lead", *meeting, "--hosts=2", "--", *driver])
    follower = subprocess.Popen([*ours, "follow", *meeting, "--", "sleep", "100"])
    assert (lead.wait(60), follower.wait(60)) == (7, 7)
    assert found.read_text().splitlines() == ["127.0.0.1:2", "127.0.0.1:2"]
