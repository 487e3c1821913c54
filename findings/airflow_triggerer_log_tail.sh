#!/usr/bin/env bash
# Airflow: the last lines that a trigger logs are lost from the task's log, if the triggerer is held up meanwhile.
#
# Versions: apache-airflow 3.3.2 (task SDK 1.3.2), Python 3.11.
# Guess: all that a trigger has logged before it yields its event is in the task's log, sooner or later.
# Seen: the triggerer's main process reads logs and requests from two sockets, in each turn of its loop at most 4,096
#   bytes of logs. A turn has several queries of the database. When it reads the request that says "this trigger has
#   finished", it closes the trigger's log file, and lines that are still in the other socket go elsewhere. Here it
#   stands still for some seconds, as it does for a slow query: of 60 lines, a few tens at most are in the task's log.
#   The task succeeds. A trigger that waits long enough between its last line and its event has all of them.
# Why it matters: the last lines of a job are those that one looks for.
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

cat >"$T/says.py" <<'END_OF_PYTHON'
import asyncio
import os
import signal
import subprocess

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

LINES = 60


class Say(BaseTrigger):
    def __init__(self, pause, begin):
        super().__init__()
        self.pause, self.begin = pause, begin

    def serialize(self):
        return "says.Say", {"pause": self.pause, "begin": self.begin}

    async def run(self):
        await asyncio.sleep(self.begin)
        main = os.getppid()
        subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {main}"], start_new_session=True)
        os.kill(main, signal.SIGSTOP)
        for number in range(LINES):
            self.log.info("line %d %s", number, "x" * 300)
        await asyncio.sleep(self.pause)
        yield TriggerEvent("done")


class Says(BaseOperator):
    def __init__(self, pause, begin, **kwargs):
        super().__init__(**kwargs)
        self.pause, self.begin = pause, begin

    def execute(self, context):
        self.defer(trigger=Say(self.pause, self.begin), method_name="resume")

    def resume(self, context, event):
        open(f"{__file__}.{self.task_id}", "w").close()
END_OF_PYTHON
cat >"$T/dags/tail.py" <<'END_OF_PYTHON'
from airflow.sdk import DAG
from says import Says

with DAG("tail", schedule=None):
    before = Says(task_id="later", pause=20, begin=3.5)
    for number in range(4):  # the finish is reported once a second: one of them meets the pause
        before = before >> Says(task_id=f"at_once_{number}", pause=0, begin=3.2 + 0.2 * number)
END_OF_PYTHON

export AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False
export AIRFLOW__CORE__DAGS_FOLDER=$T/dags
export AIRFLOW__API__PORT=18764 AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://127.0.0.1:18764/execution/
setsid airflow standalone >"$T/standalone" 2>&1 &
SESSIONS=$!
for _ in $(seq 120); do
  airflow dags trigger tail >"$T/log" 2>&1 && break
  sleep 2
done
for _ in $(seq 240); do
  [ "$(find "$T" -maxdepth 1 -name 'says.py.*' | wc -l)" = 5 ] && break
  sleep 1
done
[ "$(find "$T" -maxdepth 1 -name 'says.py.*' | wc -l)" = 5 ] || { tail -n 5 "$T/log" "$T/standalone"; exit 2; }

lines() { # $1: the task
  find "$T/home/logs" -path "*task_id=$1/*" -name '*.trigger.*' -exec cat {} + | grep -o '"line [0-9]*' | sort -u | wc -l
}
lost=0
for task in later at_once_0 at_once_1 at_once_2 at_once_3; do
  seen=$(lines "$task")
  echo "$task: $seen of 60 lines are in the log"
  [ "$task" = later ] || [ "$seen" = 60 ] || lost=$((lost + 1))
done
[ "$lost" -gt 0 ] && [ "$(lines later)" = 60 ] || exit 1
