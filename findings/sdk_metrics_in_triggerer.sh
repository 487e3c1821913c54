#!/usr/bin/env bash
# Airflow: metrics that a trigger sends with `airflow.sdk.observability.stats` go nowhere, without a word.
#
# Versions: apache-airflow 3.3.2 with apache-airflow-task-sdk 1.3.2, statsd 4.0.1, Python 3.11. `airflow standalone` with
#   a real scheduler, worker and triggerer; a socket that takes StatsD over UDP.
# Guess: `airflow.sdk.observability.stats` is the public way to send metrics, so what a task sends with it arrives, and
#   what a trigger sends arrives, too.
# Seen: the calls of a task arrive, those of its trigger do not. No log has an error. There are two copies of the module.
#   The triggerer initialises `airflow._shared.observability.metrics.stats`, and its own gauges arrive. Nobody
#   initialises the copy of the SDK in the process that runs triggers, so there it sends to nobody. A trigger that
#   initialises it first is heard.
# Why it matters: a deferred training has no other process in Airflow but its trigger. Its dashboard stays empty, and
#   alerts about it never fire.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" apache-airflow==3.3.2 \
    apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2 statsd==4.0.1
} || exit 2

mkdir "$T/dags"
cat >"$T/two_metrics.py" <<'END'
from datetime import timedelta

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from airflow.triggers.base import BaseTrigger, TriggerEvent


class Counting(BaseTrigger):
    def __init__(self, name, initialise):
        super().__init__()
        self.name, self.initialise = name, initialise

    def serialize(self):
        return "two_metrics.Counting", {"name": self.name, "initialise": self.initialise}

    async def run(self):
        if self.initialise:
            stats.initialize(
                factory=stats_utils.get_stats_factory(),
                export_legacy_names=conf.getboolean("metrics", "legacy_names_on"),
            )
        stats.incr(self.name)
        yield TriggerEvent("counted")


class Deferred(BaseOperator):
    def execute(self, context):
        stats.incr("seen.task_before")
        self.defer(trigger=Counting("seen.trigger", False), method_name="again")

    def again(self, context, event=None):
        stats.incr("seen.task_between")
        self.defer(trigger=Counting("seen.trigger_initialised", True), method_name="end")

    def end(self, context, event=None):
        stats.incr("seen.task_after")


with DAG("two_metrics", schedule="@once"):
    Deferred(task_id="deferred", retries=5, retry_delay=timedelta(seconds=1))
END

cat >"$T/watch.py" <<'END'
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HOME, SECONDS = sys.argv[1], 600
ctypes.CDLL(None).prctl(36, 1)  # whatever Airflow leaves behind becomes a child of this process, and is found below


def socket_on_a_free_port(kind):
    one = socket.socket(socket.AF_INET, kind)
    one.bind(("127.0.0.1", 0))
    return one


def answers(url):
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60).status == 200
    except OSError:
        return False


def below(pid):
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                yield int(name)
                yield from below(int(name))


statsd = socket_on_a_free_port(socket.SOCK_DGRAM)
statsd.settimeout(1)
held = [socket_on_a_free_port(socket.SOCK_STREAM) for _ in range(3)]
api, worker_logs, trigger_logs = (one.getsockname()[1] for one in held)
for one in held:
    one.close()
settings = {
    "AIRFLOW_HOME": HOME,
    "AIRFLOW__API__HOST": "127.0.0.1",
    "AIRFLOW__API__PORT": api,
    "AIRFLOW__API__WORKERS": 1,
    "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{api}",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
    "AIRFLOW__CORE__DAGS_FOLDER": f"{HOME}/dags",
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    "AIRFLOW__CORE__LOAD_EXAMPLES": False,
    "AIRFLOW__CORE__PARALLELISM": 2,
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": 2,
    "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_logs,
    "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": worker_logs,
    "AIRFLOW__METRICS__STATSD_ON": True,
    "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
    "AIRFLOW__METRICS__STATSD_PORT": statsd.getsockname()[1],
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": False,
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": 60,
}
kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
kept |= {"PATH": f"{HOME}/venv/bin:{kept['PATH']}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
log = open(f"{HOME}/standalone.log", "wb")
subprocess.Popen(
    [f"{HOME}/venv/bin/airflow", "standalone"],
    env=kept | {name: str(value) for name, value in settings.items()},
    stdin=subprocess.DEVNULL,
    stdout=log,
    stderr=log,
)
heard, end = set(), time.monotonic() + SECONDS
try:
    while time.monotonic() < end and not answers(f"http://127.0.0.1:{api}/execution/health"):
        time.sleep(0.5)
    os.rename(f"{HOME}/two_metrics.py", f"{HOME}/dags/two_metrics.py")  # a task needs the API server
    while time.monotonic() < end and not {"seen.task_after", "triggers.running"} <= heard:
        try:
            packet = statsd.recv(65536).decode()
        except TimeoutError:
            continue
        names = (line.partition(":")[0].removeprefix("airflow.") for line in packet.splitlines())
        heard |= {"triggers.running" if name.startswith("triggers.running") else name for name in names}
finally:
    while left := [*below(os.getpid())]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.05)

wanted = {
    "seen.task_before": (True, "a task, before it defers"),
    "seen.trigger": (False, "its trigger"),
    "seen.task_between": (True, "the task, after that trigger"),
    "seen.trigger_initialised": (True, "a trigger that initialises the SDK's copy first"),
    "seen.task_after": (True, "the task, at its end"),
    "triggers.running": (True, "the triggerer's own gauge of its triggers"),
}
for name, (_, whose) in wanted.items():
    print(f"{'arrived' if name in heard else 'lost   '}  {name:25}  {whose}")
logs = [pathlib.Path(f"{HOME}/standalone.log"), *pathlib.Path(f"{HOME}/logs").rglob("*.log*")]
words = [line for path in logs if path.is_file() for line in path.read_text(errors="replace").splitlines()]
told = [line for line in words if "stats" in line.lower() and "error" in line.lower()]
print(f"lines of all logs that tell of an error with metrics: {len(told)}")
if "seen.task_after" not in heard:
    print(f"the DAG run was not over after {SECONDS} s", *words[-20:], sep="\n", file=sys.stderr)
    sys.exit(2)
sys.exit(bool(told) or any((name in heard) is not arrives for name, (arrives, _) in wanted.items()))
END
"$T/venv/bin/python" "$T/watch.py" "$T" || {
  code=$?
  [ "$code" = 2 ] || echo "not as described: see above" >&2
  exit "$code"
}
