"""Launchers are found behind wrappers and in shells' lines, and what these did is done: run by real shells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.engines.kube.manifests.commands import Scope, find_launch
from airflow_elastic.engines.kube.manifests.commands.variables import filled_by_kubernetes
from airflow_elastic.spec.errors import SpecError

SCOPE = Scope(
    {"N": "4", "ARGS": "--lr 0.1", "TWO": "4", "NODES": "3", "EMPTY": ""}, frozenset({"TOKEN", "RANK"})
)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["tini", "--", "torchrun", "t.py"], {"wrapper": ["tini", "--"]}),
        (["/opt/venv/bin/torchrun", "t.py"], {"python": "/opt/venv/bin/python"}),
        (
            ["env", "A=b", "e/bin/accelerate", "launch", "t.py"],
            {"wrapper": ["env", "A=b"], "python": "e/bin/python"},
        ),
        (["/usr/local/bin/torchrun", "t.py"], {"python": None}),
        (["/root/.local/bin/dlrover-run", "t.py"], {"python": None}),
        (
            ["nice", "-n", "5", "numactl", "-N", "0", "torchrun", "t.py"],
            {"wrapper": ["nice", "-n", "5", "numactl", "-N", "0"]},
        ),
        (
            ["nsys", "profile", "-o", "/r/%h", "torchrun", "t.py"],
            {"wrapper": ["nsys", "profile", "-o", "/r/%h"]},
        ),
        (
            ["/opt/nvidia/nvidia_entrypoint.sh", "torchrun", "t.py"],
            {"wrapper": ["/opt/nvidia/nvidia_entrypoint.sh"]},
        ),
        (["uv", "run", "--with", "x", "torchrun", "t.py"], {"wrapper": ["uv", "run", "--with", "x"]}),
        (
            ["conda", "run", "-n", "e", "python3", "-m", "torch.distributed.run", "t.py"],
            {"wrapper": ["conda", "run", "-n", "e"], "python": "python3"},
        ),
        (["timeout", "-k", "30", "1.5h", "torchrun", "t.py"], {"deadline": 5400}),
        (
            ["env", "A=b", "timeout", "--signal=TERM", "90m", "torchrun", "t.py"],
            {"wrapper": ["env", "A=b"], "deadline": 5400},
        ),
        (["bash", "-c", "exec timeout 3h torchrun t.py"], {"deadline": 10800}),
        (["timeout", "0", "torchrun", "t.py"], {"deadline": None, "wrapper": []}),
        (
            ["python", "-X", "dev", "-W", "ignore", "-u", "-m", "torch.distributed.run", "t.py"],
            {"python": "python", "wrapper": []},
        ),
        (["python", "-m", "torch.distributed.launch", "--use-env", "t.py"], {"launcher": "torchrun"}),
        (["python3", "/opt/bin/torchrun", "--nproc=2", "t.py"], {"procs": "2", "python": "python3"}),
        (["accelerate-launch", "--num_processes=8", "t.py"], {"launcher": "accelerate", "ranks": 8}),
        (
            [
                "torchrun",
                "--nproc-per-node=$(TWO)",
                "--master_addr=$(RANK)",
                "t.py",
                "$(N)",
                "$(NONE)",
                "$$(N)",
            ],
            {"procs": "4", "command": ["t.py", "4", "$(NONE)", "$(N)"]},
        ),
        (
            ["bash", "-c", "torchrun --nproc_per_node=$N t.py ${ARGS} \"$ARGS\" ${NONE:-x} '$N' $EMPTY"],
            {"procs": "4", "command": ["t.py", "--lr", "0.1", "--lr 0.1", "x", "$N"]},
        ),
        (
            [
                "bash",
                "-c",
                "dlrover-run --network-check --nnodes=2:$NODES \\\n  --nproc_per_node=2 t.py --n $((NODES * 2))",
            ],
            {"launcher": "dlrover-run", "nodes": (2, 3), "command": ["t.py", "--n", "6"], "wrapper": []},
        ),
        (
            ["bash", "-c", "(bash chaos.sh cpu &)\n && dlrover-run --rdzv_conf a=$X t.py"],
            {"wrapper": ["bash", "-c", '(bash chaos.sh cpu &)\n && exec "$@"', "bash"]},
        ),
        (["bash", "-c", 'torchrun t.py "$@"', "--", "a", "b c"], {"command": ["t.py", "a", "b c"]}),
        (["sh", "-c", "export N=8; torchrun --nproc_per_node=$N t.py"], {"procs": "8"}),
        (["bash", "-euxo", "pipefail", "-c", "set -x\ntorchrun t.py  # last"], {"wrapper": []}),
        (
            ["bash", "-c", "login $(TOKEN) && X=$(date) && torchrun t.py"],
            {"wrapper": ["bash", "-c", 'login $(TOKEN) && X=$$(date) && exec "$$@"', "bash"]},
        ),
        (
            ["bash", "-c", "make data && ./train"],
            {"launcher": "python", "command": ["bash", "-c", "make data && ./train"]},
        ),
        (["bash", "-c", "pip install accelerate && python t.py"], {"launcher": "python"}),
        (
            ["tini", "--", "python", "t.py"],
            {"launcher": "python", "command": ["tini", "--", "python", "t.py"]},
        ),
    ],
)
def test_found(words: list[str], wanted: dict[str, Any]) -> None:
    found = find_launch(words, "command", SCOPE)
    assert found.launcher == wanted.pop("launcher", found.launcher)
    for name, value in wanted.items():
        got = getattr(found, name)
        assert (list(got) if isinstance(value, list) else got) == value, name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sh", "-c", "torchrun t.py $RANK"], "without $RANK, which only the pod knows"),
        (["sh", "-c", "torchrun t.py ${RANK:-0}"], "without ${RANK:-0}"),
        (["sh", "-c", "torchrun --nproc_per_node=$(nproc) t.py"], "without $(nproc)"),
        (["sh", "-c", "torchrun t.py `date`"], "without `date`"),
        (["sh", "-c", "torchrun t.py *.txt"], "without *.txt"),
        (["sh", "-c", "torchrun t.py ~/data"], "without ~/data"),
        (["bash", "-c", "torchrun t.py {a,b}"], "without {a,b}"),
        (["sh", "-c", "N=$(nproc); torchrun --nproc_per_node=$N t.py"], "without $N"),
        (["sh", "-c", ". /etc/env && torchrun --nproc_per_node=$N t.py"], "without $N"),
        (["sh", "-c", "torchrun t.py $((RANK + 1))"], "without $((RANK + 1))"),
        (["python", "t.py", "$(TOKEN)"], "without $(TOKEN)"),
        (["torchrun", "t.py", "$(FIT_SERVICE_HOST)"], "without $(FIT_SERVICE_HOST)"),
        (["sh", "-c", "torchrun t.py | tee log"], "nothing behind the launcher's command (| tee log)"),
        (["sh", "-c", "torchrun t.py; echo done"], "nothing behind the launcher's command (; echo done)"),
        (["sh", "-c", "torchrun t.py || true"], "nothing behind the launcher's command (|| true)"),
        (["sh", "-c", "torchrun t.py &"], "without & behind it"),
        (["sh", "-c", "yes | torchrun t.py"], "without `|` before it"),
        (["sh", "-c", "if true; then torchrun t.py; fi"], "outside of if"),
        (["sh", "-c", "(torchrun t.py)"], "outside of if"),
        (["sh", "-c", "f() { torchrun t.py; }; f"], "outside of if"),
        (["sh", "-c", "torchrun a.py; torchrun b.py"], "one launcher in the line"),
        (["sh", "-c", "case x in x) torchrun t.py;; esac"], "as a list of words"),
        (["sh", "-c", "cat <<E\ntorchrun t.py\nE"], "as a list of words"),
        (["sh", "-c", "torchrun 't.py"], "as a list of words"),
        (["sh", "-c", 'eval "torchrun t.py"'], "as a command of its own"),
        (["sh", "-c", "torchrun t.py", "--lr", "1"], "no words behind the shell's line"),
        (["sh", "-c", "cd $1 && torchrun t.py", "-", "/a"], "no words behind"),
        (["./run.sh", "torchrun", "t.py"], "What ./run.sh does with it is not known"),
        (["env", "-i", "torchrun", "t.py"], "env without -i"),
        (["timeout", "-s", "KILL", "1h", "torchrun", "t.py"], "timeout with SIGTERM"),
        (["timeout", "torchrun", "t.py"], "timeout with a duration"),
        (["python", "-m", "torch.distributed.launch", "t.py"], "--use-env"),
        (["torchrun", "--tee=3", "t.py"], "the run keeps the output"),
        (["accelerate", "launch", "--config_file", "c.yaml", "t.py"], "the options that the file holds"),
        (["torchrun", "--nproc_per_node=many", "t.py"], "a number"),
        (["torchrun", "--nnodes", "1:x", "t.py"], "a number"),
        (["torchrun"], "a script behind"),
        (["torchrun", "--nnodes"], "a value behind"),
        (["tini", "--", "deepspeed", "t.py"], "torchrun, accelerate launch"),
        (["tune", "run", "x"], "torchrun, accelerate launch"),
    ],
)
def test_refused(words: list[str], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        find_launch(words, "spec.command", SCOPE)
    assert told in str(refused.value)
    assert refused.value.problems[0].path == "spec.command"


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$(N)", "4"),
        ("$$(N)", "$(N)"),
        ("$$$(N)", "$4"),
        ("$$$$(N)", "$$(N)"),
        ("$(NONE)", "$(NONE)"),
        ("$(N", "$(N"),
        ("$N $", "$N $"),
        ("$$x", "$x"),
    ],
)
def test_variables_as_kubernetes_fills_them_in(text: str, filled: str) -> None:
    assert filled_by_kubernetes(text, SCOPE) == filled


# -- by real shells ---------------------------------------------------------------------------------------------------

#: Stands for the launcher, and for our agent: says where it is, and with what.
REPORT = """\
#!{python}
import json, os, sys
keys = [k for k in os.environ if k.startswith("T_")]
with open(os.environ["OUT"], "w") as file:
    env = {{k: os.environ[k] for k in keys}}
    json.dump({{"cwd": os.getcwd(), "env": env, "nice": os.nice(0), "args": sys.argv[1:]}}, file)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["env", "T_A=b", "torchrun", "t.py", "--x"],
        ["env", "-u", "T_GIVEN", "nice", "-n", "3", "torchrun", "t.py"],
        ["bash", "-c", "cd sub && T_A='x y' exec torchrun --nproc_per_node=2 t.py \"a b\" $T_GIVEN"],
        ["bash", "-ec", "export T_B=$(echo 7)\ncd sub; torchrun t.py 2>&1"],
        ["sh", "-c", "set -e; T_A=$T_GIVEN nice -n 2 torchrun t.py 'it''s' > log.txt"],
        ["bash", "-c", "(echo hi > side.txt &) && torchrun --nnodes=1 t.py ${T_GIVEN:-no} $((2 * 3))"],
        [
            "bash",
            "-c",
            "if [ -d sub ]; then export T_C=yes; fi; umask 077; torchrun t.py \\\n  --y z  # done",
        ],
        ["bash", "-lc", 'torchrun t.py "$@"', "bash", "p q", "r"],
        ["timeout", "5m", "bash", "-c", "torchrun t.py"],
        ["stdbuf", "-oL", "sh", "-c", 'export T_D="a\\"b"; torchrun t.py'],
    ],
)
def test_what_was_done_before_the_launcher_is_done(tmp_path: Path, words: list[str]) -> None:
    for name in ("torchrun", "agent"):
        program = tmp_path / name
        program.write_text(REPORT.format(python=sys.executable))
        program.chmod(0o755)
    given = {"T_GIVEN": "given"}

    def run(command: list[str], out: str) -> dict[str, Any]:
        folder = tmp_path / out
        (folder / "sub").mkdir(parents=True)
        path = f"{tmp_path}:{os.environ['PATH']}"
        profile = {"HOME": str(tmp_path), "PATH": path, "OUT": str(tmp_path / f"{out}.json")}
        subprocess.run(command, cwd=folder, env={**profile, **given}, check=True, timeout=60)
        told: dict[str, Any] = json.loads((tmp_path / f"{out}.json").read_text())
        told["cwd"] = os.path.relpath(told["cwd"], folder)
        return told

    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not here")
    login = "-lc" in words  # which sets PATH anew
    found = find_launch(words, "command", Scope(given))
    wrapper = [filled_by_kubernetes(word, Scope(given)) for word in found.wrapper]
    wrapped = run([*wrapper, str(tmp_path / "agent"), "-m", "pod"], "wrapped")
    assert wrapped.pop("args") == ["-m", "pod"]
    if login:
        return
    plain = run(words, "plain")
    script = [re.sub("^--n[a-z_]+=[0-9]$", "", one) for one in plain.pop("args")]
    assert [one for one in script if one] == list(found.command)
    assert plain == wrapped
