"""Ranks, started afresh and by a fork of a process that has imported torch: a script must not be able to tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import airflow_elastic
from airflow_elastic.adapters.host.environment import with_room
from airflow_elastic.adapters.host.processes import marked, readable
from airflow_elastic.adapters.records.job_files import Meeting
from airflow_elastic.launchers import TORCHRUN, Place
from airflow_elastic.launchers.read_early import before_import, read_early
from airflow_elastic.runtime.agent import fork_server as module
from airflow_elastic.runtime.agent import rank_group as module_of_group
from airflow_elastic.runtime.agent.fork_server import ForkServer
from airflow_elastic.runtime.agent.rank_group import RankGroup
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, SecretRef, Workers
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.saving import SavingWorker

START_RANK = str(Path(airflow_elastic.__file__).parent / "runtime/rank/start_rank.py")

#: What a script can see of the process that it runs in.
SCRIPT = """
import json, os, sys
warm = {"torch", "airflow_elastic.runtime.session.session"} <= sys.modules.keys()
import torch
print("on error", file=sys.stderr)
print(json.dumps({
    "warm": warm, "argv": sys.argv, "cwd": os.getcwd(), "name": __name__, "path": sys.path[:2],
    "stdin": sys.stdin.read(), "threads": torch.get_num_threads(), "file": __file__,
    **{f"${key}": value for key, value in os.environ.items()}, "comm": open("/proc/self/comm").read().strip(),
    "session": os.getsid(0) == os.getpid(), "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "argument": os.environ.get("ODD"),
}))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Worker]:
    """A worker of two ranks; nothing that it has started may be left."""
    made = SavingWorker(str(tmp_path / "run")).node
    script = tmp_path / "work" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    spec = RunSpec(
        ("train.py", "--of", "two words"), workers=Workers(1, procs=2), working_dir=str(script.parent)
    )
    made.record = replace(made.record, spec=spec, name=f"job-{os.getpid()}-{tmp_path.name}")
    yield made
    deadline = time.monotonic() + PATIENCE_SECONDS
    # What was killed takes a moment to be gone.
    while left := marked("AIRFLOW_ELASTIC_JOB", made.record.name):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.fixture
def server(node: Worker) -> Iterator[ForkServer]:
    """Not begun yet; ended after the test."""
    made = ForkServer(node)
    yield made
    made.end()


def command(node: Worker) -> list[str]:
    return TORCHRUN.command(node.record.spec, Place(sys.executable, 0, 1, "", 0))


def environments(node: Worker, **more: str) -> list[dict[str, str]]:
    alike = {**os.environ, **node.environment(), **more}
    return [{**alike, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


def write(node: Worker, text: str) -> None:
    """Let the ranks run this script."""
    Path(node.record.spec.working_dir or "", "train.py").write_text(text)


def run_ranks(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch, **more: str
) -> dict[int, int]:
    """Run the ranks to their end, in the worker's folder; returns their exit codes."""
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    with RankGroup(node, command(node), environments(node, **more), server) as group:
        while len(group.codes) < 2:
            group.rest(1.0)
        return group.codes


def seen(node: Worker, rank: int) -> dict[str, object]:
    lines = node.rank_logs()[rank].read_text().splitlines()
    assert lines[0] == "on error"
    found: dict[str, object] = json.loads(lines[1])
    return found


def test_a_script_sees_the_same_either_way(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"ODD": "ü\n\udce4 \" ' {}", "CODE": "138"}
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    assert run_ranks(node, server, monkeypatch, **odd) == {0: 138, 1: 138}
    cold = [seen(node, rank) for rank in range(2)]
    server.begin()
    for _ in range(2):  # one server, for all generations
        assert run_ranks(node, server, monkeypatch, **odd) == {0: 138, 1: 138}
        forked = [seen(node, rank) for rank in range(2)]
        assert [one.pop("warm") for one in forked] == [True, True]
        for before, after in zip(cold, forked, strict=True):
            different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            assert different <= {"warm"}
        assert [one["comm"] for one in forked] == ["rank-0", "rank-1"]
        assert forked[0]["argument"] == odd["ODD"]
    assert [one.pop("warm") for one in cold] == [False, False]
    more = {
        **odd,
        "OMP_NUM_THREADS": "2",
    }  # which numpy and torch read when they are imported: by another server
    assert run_ranks(node, server, monkeypatch, **more) == {0: 138, 1: 138}
    assert (seen(node, 1)["warm"], seen(node, 1)["threads"]) == (True, min(2, os.cpu_count() or 1))


def test_ranks_share_the_memory_of_their_imports(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        node,
        "import gc, torch\nfrom pathlib import Path\n"
        "gc.collect()\n"
        "lines = [line.split() for line in Path('/proc/self/smaps_rollup').read_text().splitlines()]\n"
        "print(sum(int(line[1]) for line in lines if line[0].startswith('Private_')))\n",
    )
    server.begin()
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    alone = [int(path.read_text()) for path in node.rank_logs()]
    assert max(alone) < 40_000, "kB; an import of torch has 400,000"


def test_ranks_draw_numbers_of_their_own(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks of one process would otherwise draw the same."""
    write(
        node,
        "import multiprocessing, random, uuid\nimport numpy\nimport torch\n"
        "key = bytes(multiprocessing.current_process().authkey).hex()\n"
        "print(random.random(), numpy.random.rand(), uuid.uuid4(), key)\n"
        "print(torch.rand(1).item(), torch.initial_seed())\n",
    )
    server.begin()
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    one, two = (path.read_text().split() for path in node.rank_logs())
    assert len(one) == 6
    assert not set(one) & set(two)


def test_a_rank_may_start_processes_of_its_own(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fork, by spawn and by a fork server, with torch's threads in use before."""
    write(
        node,
        "import multiprocessing, sys\nimport numpy, torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n\n"
        "def double(value):\n    return (torch.ones(64, 64) @ torch.ones(64, 64)).mean().item() + value\n\n"
        "if __name__ == '__main__':\n"
        "    numpy.ones((300, 300)) @ numpy.ones((300, 300))\n"
        "    told = []\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(1) as pool:\n"
        "            told += pool.map(double, [1.0])\n"
        "        data = DataLoader(TensorDataset(torch.arange(4)), num_workers=1, multiprocessing_context=how)\n"
        "        told.append(sum(int(batch[0]) for batch in data))\n"
        "    print(told)\n",
    )
    server.begin()
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    assert [path.read_text().strip() for path in node.rank_logs()] == [str([65.0, 6] * 3)] * 2


@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_leaves_the_same_evidence(
    broken: bool, node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a script, or of torch, which may find a library missing."""
    if broken:
        (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: no such file')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write(node, "import torch\n\n\ntorch.zeros(2) @ torch.zeros(3)\n")
    node.rank_files.parent.mkdir(parents=True, exist_ok=True)
    told = []
    for _ in range(2):
        assert run_ranks(node, server, monkeypatch) == {0: 1, 1: 1}
        error = node.rank_error(1, 1)
        told.append((error.error, error.traceback, node.rank_logs()[1].read_text()))
        server.begin()
    server.end()
    assert told[0] == told[1]
    assert ("libcudart.so" if broken else 'train.py", line 4') in str(told[0][1])


def test_a_server_that_died_is_done_without_and_started_again(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.begin()
    (lost,) = until(lambda: marked("AIRFLOW_ELASTIC_JOB", node.record.name), "its environment")
    lost.send(signal.SIGKILL)
    descriptor = lost.open()
    if descriptor is not None:
        assert readable(descriptor, PATIENCE_SECONDS)
        os.close(descriptor)
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    assert [seen(node, rank)["warm"] for rank in range(2)] == [False, False]
    server.begin()
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    assert [seen(node, rank)["warm"] for rank in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        # A lock that it holds would be locked in each rank for ever.
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "each rank imports torch itself: the fork server has 1 other threads",
        ),
        # No rank need fail of it.
        (
            "import os; os.register_at_fork(after_in_child=os.abort)",
            "the fork server cannot be forked: a fork of it ended with -6",
        ),
    ],
    ids=["another-thread", "forks-die"],
)
def test_no_rank_is_forked_where_a_module_of_the_site_cannot_bear_it(
    does: str,
    why: str,
    node: Worker,
    server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif '--fork-server' in sys.orig_argv:\n    {does}\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    server.begin()
    assert run_ranks(node, server, monkeypatch) == {0: 0, 1: 0}
    assert [seen(node, rank)["warm"] for rank in range(2)] == [False, False]
    assert why in caplog.text


def test_no_rank_is_forked_once_a_device_is_open(tmp_path: Path) -> None:
    """A fork cannot use it. The path of a device is this test's own."""
    program = (
        "import sys\nfrom airflow_elastic.runtime.forks import prepare\n"
        "prepare._DEVICES = (sys.argv[1],)\nprint(prepare._unfit(), flush=True)\n"
        "device = open(sys.argv[1], 'w')\nprint(prepare._unfit())\n"
    )
    path = str(tmp_path / "nvidia0")
    told = subprocess.check_output([sys.executable, "-c", program, path], text=True)
    assert told.splitlines() == ["None", f"has opened {path}"]


def test_ranks_outlive_their_server(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are children of the agent, which learns how they end; and what they leave is no zombie of the agent."""
    write(
        node,
        "import os, sys, time\nprint('begun', flush=True)\n"
        "if os.fork() == 0:\n    time.sleep(600)\n"
        "while not os.path.exists('go on'):\n    time.sleep(0.01)\n"
        "assert os.getppid() == int(os.environ['AGENT'])\nos._exit(7)\n",
    )
    server.begin()
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    with RankGroup(node, command(node), environments(node, AGENT=str(os.getpid())), server) as group:
        until(lambda: [path.read_text() for path in node.rank_logs()] == ["begun\n"] * 2, "both ranks")
        server.end()
        Path("go on").touch()
        until(lambda: len(group.codes) == 2, "the ranks' end")
    assert group.codes == {0: 7, 1: 7}
    children = Path(f"/proc/self/task/{os.getpid()}/children")

    def none_left() -> bool:
        server.look()
        return not any(
            "(rank-" in Path(f"/proc/{pid}/stat").read_text() for pid in children.read_text().split()
        )

    until(none_left, "no zombie to be left")


def test_a_rank_begins_as_a_child_of_its_agent() -> None:
    """Not of the process between them, which may take long to end: a script may ask the kernel for the parent's end."""
    program = (
        "import os, time\n"
        "from airflow_elastic.adapters.host.processes import take_orphans\n"
        "from airflow_elastic.runtime.forks.server import fork_for_parent\n"
        "agent, end = os.getpid(), os._exit\n"
        "os._exit = lambda code: (time.sleep(0.3), end(code))\n"
        "take_orphans()\n"
        "pid = fork_for_parent()\n"
        "if pid is None:\n    end(0 if os.getppid() == agent else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_ends_with_its_agent(node: Worker, server: ForkServer) -> None:
    """Whatever ends the agent: what the server waits for is the end of its socket."""
    program = (
        "import os, socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair()\n"
        f"words = [sys.executable, '-u', {START_RANK!r}, '--fork-server', str(theirs.fileno())]\n"
        "process = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    try:
        descriptor = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert readable(descriptor, PATIENCE_SECONDS), "it waits on"
    os.close(descriptor)


def test_there_is_none_where_memory_is_scarce(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def servers() -> int:
        return len(marked("AIRFLOW_ELASTIC_JOB", node.record.name))

    need = module.KEEP_BYTES + module.EACH_BYTES
    monkeypatch.setattr(module, "free_bytes", lambda: need - 1)
    server.begin()
    assert servers() == 0
    assert "only 1.61 GB of memory are free" in caplog.text
    monkeypatch.setattr(module, "free_bytes", lambda: need)
    server.begin()
    server.begin()  # it is there
    until(lambda: servers() == 1, "it to have its environment, a moment after it has begun")


@pytest.mark.parametrize(
    "changed",
    [
        {"launcher_options": {"start": "cold"}},
        {"launcher_options": {"spares": False}},  # its former name
        {"command": ("./train", "--of", "nobody")},  # whatever it is: it imports what it wants
        {"launcher": "python"},
    ],
)
def test_there_is_none_where_it_is_of_no_use(node: Worker, changed: Mapping[str, object]) -> None:
    spec = replace(node.record.spec, workers=Workers(1), **changed)  # type: ignore[arg-type]
    node.record = replace(node.record, spec=spec)
    ForkServer(node).begin()
    assert marked("AIRFLOW_ELASTIC_JOB", node.record.name) == []


def test_options_of_torchrun_are_checked() -> None:
    from airflow_elastic.launchers import find_launcher

    with pytest.raises(SpecError, match=r"launcher_options\.begin\b.*start"):
        find_launcher("torchrun").refuse(RunSpec(("train.py",), launcher_options={"begin": "cold"}))
    with pytest.raises(SpecError, match=r"launcher_options\.start\b.*warm.*fork.*cold"):
        find_launcher("torchrun").refuse(RunSpec(("train.py",), launcher_options={"start": "warm"}))


def test_ranks_that_do_not_heed_are_killed_with_what_they_have_started(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        node,
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n",
    )
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    with RankGroup(node, command(node), environments(node), ForkServer(node)) as group:
        while not all(path.read_text() for path in node.rank_logs()):
            group.rest(0.02)
    assert group.codes == {0: -9, 1: -9}
    assert len(node.rank_logs()) == 2


def test_a_secret_that_is_missing_is_the_ranks_to_tell(node: Worker) -> None:
    secret = SecretRef("TOKEN", "file", "/nowhere/token")
    node.record = replace(node.record, spec=replace(node.record.spec, secrets=(secret,)))
    ForkServer(node).begin()
    assert marked("AIRFLOW_ELASTIC_JOB", node.record.name) == []


def test_ranks_have_what_torchrun_gives_its_own(node: Worker, tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        str(script),
    ]
    # pytest has told readline how wide its window is, which only those know that C starts.
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    theirs = json.loads(subprocess.check_output(command, timeout=PATIENCE_SECONDS, env=environment))
    assert node.members is not None
    (ours, _) = module_of_group.rank_environments(node, node.members, Meeting("10.0.0.1", 7))
    assert theirs.keys() - ours.keys() - os.environ.keys() == {
        "TORCHELASTIC_SIGNALS_TO_HANDLE"
    }  # its own affair
    assert (ours["MASTER_ADDR"], ours["MASTER_PORT"], ours["WORLD_SIZE"]) == ("10.0.0.1", "7", "2")


#: Does what a node host does, and then what its agents do: starts ranks, with an inherited server, in two environments.
HOST = """
import os, sys
from airflow_elastic.adapters.host.environment import ROOM
from airflow_elastic.launchers.read_early import read_early
from airflow_elastic.runtime.forks.prepare import prepare, printed
from airflow_elastic.runtime.forks.server import fork_server

os.environ.pop(ROOM)
early = read_early(os.environ, os.getcwd())
with printed() as said:
    os.write(1, b"an import has printed this\\n")
    assert prepare() is None
assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
server = fork_server(said, early, {"AIRFLOW_ELASTIC_JOB": sys.argv[1]})
if isinstance(server, list):
    sys.stdout.flush()
    shown = open("/proc/self/environ").read().split("\\0")
    assert {f"{name}={value}" for name, value in os.environ.items()} == {one for one in shown if one}
    print(*server, os.getcwd(), os.getsid(0) == os.getpid(), sorted(os.listdir("/proc/self/fd"))[:-1])
    sys.exit(7)

import json, socket
server.socket.recv(64)
assert os.getsid(server.process.pid) == server.process.pid
order = {"command": ["python", "--", "a word"], "environment": {**os.environ, "RANK": "ü"}}
for number in range(2):
    order |= {"output": sys.argv[2], "folder": os.path.dirname(sys.argv[2])}
    from airflow_elastic.adapters.host.processes import marked, take_orphans
    from airflow_elastic.runtime.forks.child import Child

    take_orphans()
    assert [one.pid for one in marked("AIRFLOW_ELASTIC_JOB", sys.argv[1])] == [server.process.pid]
    server.socket.sendall(json.dumps(order).encode() + b"\\n")
    rank = Child(int(server.socket.recv(64)))
    assert rank.belongs() and rank.wait(600) == 7
server.end()
assert server.process.wait(600) in (0, -9)  # by the end of its socket, or killed
"""


def test_a_server_that_is_forked_with_its_agent(tmp_path: Path) -> None:
    """Its process, and those of its ranks, can be found by their variables, and a rank ends as Python does."""
    # In this process, another test may have made torch's compiler set its variable.
    plain = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment = with_room({**plain, "OMP_NUM_THREADS": "1"}, 1000)
    command = [sys.executable, "-u", "-c", HOST, f"job-of-{os.getpid()}", str(tmp_path / "log")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "log").read_text()
    assert told == f"an import has printed this\n-- a word {tmp_path} True ['0', '1', '2']\n"


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, True),
        ({"PYTHONPATH": "/here/src"}, True),
        ({"PYTHONPATH": "/there/src"}, False),
        ({"TORCH_LOGS": "dynamo"}, False),
        ({"LD_PRELOAD": "libjemalloc.so"}, False),
    ],
)
def test_what_is_read_early(more: dict[str, str], same: bool) -> None:
    before = read_early({"PYTHONPATH": "src"}, "/here")
    assert (read_early({"PYTHONPATH": "/here/src", **more}, "/anywhere") == before) is same


def test_what_a_host_is_given() -> None:
    """What the user's ranks read early, but nothing that could keep the host from starting."""
    env = {"TORCH_LOGS": "x", "PYTHONPATH": "src", "PYTHONHASHSEED": "1", "LD_PRELOAD": "lib.so", "MINE": "x"}
    given = before_import(RunSpec(("train.py",), env=env), 10_000)
    assert given == {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "x", "PYTHONHASHSEED": "1"}
