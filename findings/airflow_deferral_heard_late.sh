#!/usr/bin/env bash
# Airflow: a try fails if its trigger has fired before the scheduler hears that the task was deferred.
#
# Versions: apache-airflow 3.3.2 (task SDK 1.3.2), Python 3.11, SQLite, LocalExecutor.
# Guess: the task resumes, only later: the scheduler has a rule for a task that is "scheduled" again when the executor
#   reports the end of its first part.
# Seen: each task whose trigger fires while the scheduler stands still (here for 10 s, as for a slow query) fails, without
#   a line of its second part. When the scheduler goes on, it first queues the task again, and then reads that the first
#   part has ended: "finished with state success, but the task instance's state attribute is queued". The rule knows
#   "scheduled" alone. The executor knows both parts by one key, which the end of the first part has removed. A task that
#   meets no pause succeeds.
# Why it matters: an approval that is answered at once, or a sensor whose condition is already true, fails without
#   retries.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; pkill -9 -s "${SESSIONS:-0}" 2>/dev/null || true; rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" apache-airflow==3.3.2 apache-airflow-task-sdk==1.3.2
} || exit 2
export PATH=$T/venv/bin:$PATH AIRFLOW_HOME=$T/home PYTHONPATH=$T
mkdir "$T/home" "$T/dags"

cat >"$T/early.py" <<'END_OF_PYTHON'
import os
import signal
import subprocess
from pathlib import Path

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent


class AtOnce(BaseTrigger):
    def serialize(self):
        return "early.AtOnce", {}

    async def run(self):
        yield TriggerEvent("done")


class Deferred(BaseOperator):
    """Its trigger fires at once; the scheduler stands still meanwhile, or not."""

    def __init__(self, pause, **kwargs):
        super().__init__(**kwargs)
        self.pause = pause

    def execute(self, context):
        if self.pause:
            scheduler = int(Path(__file__).with_name("scheduler").read_text())
            subprocess.Popen(["sh", "-c", f"sleep {self.pause}; kill -CONT {scheduler}"], start_new_session=True)
            os.kill(scheduler, signal.SIGSTOP)
        self.defer(trigger=AtOnce(), method_name="resume")

    def resume(self, context, event):
        pass
END_OF_PYTHON
cat >"$T/dags/early.py" <<'END_OF_PYTHON'
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from early import Deferred

with DAG("early", schedule=None):
    before = EmptyOperator(task_id="begin")
    for number in range(6):  # every other one meets a scheduler that stands still
        before = before >> Deferred(task_id=f"task_{number}", pause=10 * (number % 2), trigger_rule="all_done")
END_OF_PYTHON

export AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False
export AIRFLOW__CORE__DAGS_FOLDER=$T/dags
export AIRFLOW__API__PORT=18765 AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://127.0.0.1:18765/execution/
setsid airflow standalone >"$T/standalone" 2>&1 &
SESSIONS=$!
for _ in $(seq 120); do
  pgrep -o -s "$SESSIONS" -f 'airflow scheduler' >"$T/scheduler" && airflow dags trigger early >"$T/log" 2>&1 && break
  sleep 2
done
states() {
  python3 - "$T/home/airflow.db" <<'END_OF_PYTHON'
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute("select task_id, state from task_instance order by task_id")
print("\n".join(f"{task}: {state}" for task, state in rows if task != "begin"))
END_OF_PYTHON
}
for _ in $(seq 240); do
  [ "$(states | grep -cE ': (success|failed)$')" = 6 ] && break
  sleep 1
done
states
[ "$(states | grep -cE ': (success|failed)$')" = 6 ] || { tail -n 5 "$T/log" "$T/standalone"; exit 2; }
grep -ho 'finished with state success, but the task instance.s state attribute is [a-z]*' "$T/standalone" | sort | uniq -c
[ "$(states | grep -c '[024]: success')" = 3 ] && [ "$(states | grep -c '[135]: failed')" -gt 0 ] || exit 1
