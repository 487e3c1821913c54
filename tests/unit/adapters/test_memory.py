"""What is read of control groups, in both of their versions; the files are as the kernel writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airflow_elastic.adapters.host import memory, processes

GB = 1 << 30


def machine(folder: Path, available: int, groups: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available // 1024} kB\n")
    (folder / "proc/self/cgroup").write_text(groups)
    return folder / "proc"


def group(folder: Path, names: memory._Names, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names.limit).write_text(f"{limit}\n")
    (folder / names.used).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon 1\n{names.prefix}inactive_file {cached}\n{names.prefix}active_file 0\n"
    )


@pytest.fixture(params=["_V2", "_V1"])
def names(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> memory._Names:
    found = dataclasses.replace(getattr(memory, request.param), root=tmp_path / "sys")
    monkeypatch.setattr(memory, request.param, found)
    return found


def test_the_tightest_of_all_limits_counts(tmp_path: Path, names: memory._Names) -> None:
    line = "0::/pods/mine" if not names.prefix else "4:memory:/pods/mine"
    proc = machine(tmp_path, 50 * GB, f"9:name=systemd:/\n{line}\n")
    group(names.root / "pods/mine", names, str(9 * GB), 4 * GB, 1 * GB)
    assert memory.free_bytes(proc) == 6 * GB
    group(names.root / "pods", names, str(100 * GB), 98 * GB, 0)
    assert memory.free_bytes(proc) == 2 * GB
    group(names.root, names, str(100 * GB), 101 * GB, 0)
    assert memory.free_bytes(proc) == 0


def test_the_least_limit_is_told_where_it_is_less_than_the_machine_has(
    tmp_path: Path, names: memory._Names
) -> None:
    line = "0::/pods/mine" if not names.prefix else "4:memory:/pods/mine"
    proc = machine(tmp_path, 50 * GB, f"{line}\n")
    group(names.root / "pods/mine", names, str(9 * GB), 4 * GB, 0)
    group(names.root, names, str(1 << 62), 4 * GB, 0)
    assert memory.limit_bytes(proc) is None, "the machine has 99 kB"
    (proc / "meminfo").write_text(f"MemTotal: {64 * GB // 1024} kB\nMemAvailable: 99 kB\n")
    assert memory.limit_bytes(proc) == 9 * GB
    (proc / "self/cgroup").write_text("9:name=systemd:/\n")
    assert memory.limit_bytes(proc) is None


@pytest.mark.parametrize(
    ("line", "file", "content"),
    [
        ("0::/", "memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/pods/mine", "pods/mine/memory.events", "oom_kill 2\n"),
        ("4:cpu,memory:/pods/mine", "memory/pods/mine/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        # A container of version 1, which knows the machine's path and sees its own group alone.
        ("4:memory:/pods/mine", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("9:name=systemd:/pods/mine", "memory/memory.oom_control", None),
    ],
)
def test_the_kernels_kills_of_our_group_are_counted(
    tmp_path: Path, line: str, file: str, content: str | None
) -> None:
    proc = machine(tmp_path, GB, f"{line}\n")
    assert processes.out_of_memory_kills(proc, tmp_path / "sys") == 0
    (tmp_path / "sys" / file).parent.mkdir(parents=True)
    (tmp_path / "sys" / file).write_text(content or "oom_kill 5\n")
    assert processes.out_of_memory_kills(proc, tmp_path / "sys") == (2 if content else 0)


def test_without_a_limit_the_machine_is_it(tmp_path: Path, names: memory._Names) -> None:
    line = "0::/" if not names.prefix else "4:cpu,memory:/"
    proc = machine(tmp_path, 5 * GB, f"{line}\n")
    group(names.root, names, "max" if not names.prefix else str(2**63 - 4096), 4 * GB, 0)
    assert memory.free_bytes(proc) == 5 * GB


def test_whose_it_is_tells_what_is_shared(tmp_path: Path, names: memory._Names) -> None:
    """Of two groups in one, what is around them is one and the same, and so is the machine."""
    found = []
    for name in ("mine", "theirs"):
        line = f"0::/pods/{name}" if not names.prefix else f"4:memory:/pods/{name}"
        proc = machine(tmp_path / name, 50 * GB, f"{line}\n")
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text("0815\n")
        group(names.root / "pods" / name, names, str(9 * GB), 4 * GB, 0)
        group(names.root / "pods", names, str(20 * GB), 9 * GB, 0)
        found.append(memory.free_memory(proc))
    mine, theirs = found
    assert sorted(mine.values()) == sorted(theirs.values()) == [5 * GB, 11 * GB, 50 * GB]
    shared = mine.keys() & theirs.keys()
    assert sorted(mine[name] for name in shared) == [11 * GB, 50 * GB]
    assert all("0815" in name for name in {*mine, *theirs}), "another machine has groups of its own"


def test_a_system_that_says_nothing_is_not_asked_twice(tmp_path: Path) -> None:
    assert memory.free_bytes(tmp_path) is None


def test_this_machine_says_it() -> None:
    free = memory.free_bytes()
    assert free is not None
    assert free > 0
