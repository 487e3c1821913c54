#!/usr/bin/env bash
# Airflow: a trigger does not find a connection of its task's team, not even in a triggerer of that team.
#
# Versions: apache-airflow 3.3.2 (task SDK 1.3.2), Python 3.11.
# Guess: with `[core] multi_team` a deferred task finds the same connections as before its deferral.
# Seen: the worker asks the API server with the task's own token, which finds the team by the task. A triggerer asks an
#   API server within its own process, where the token names a task instance that does not exist. So there is no team,
#   and a connection of a team is not found: "isn't defined". `airflow triggerer --team-name` only chooses triggers.
#   The same connection is found before the deferral and after it.
# Why it matters: everything that a trigger drives on a cluster or in a bucket is reached by a connection.
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

cat >"$T/looks.py" <<'END_OF_PYTHON'
import asyncio

from airflow.sdk import BaseHook, BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent


def look():
    try:
        return "found: " + BaseHook.get_connection("of_red").host
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Look(BaseTrigger):
    def serialize(self):
        return "looks.Look", {}

    async def run(self):
        yield TriggerEvent(await asyncio.to_thread(look))


class Looks(BaseOperator):
    def execute(self, context):
        context["ti"].xcom_push(key="before", value=look())
        self.defer(trigger=Look(), method_name="resume")

    def resume(self, context, event):
        with open(f"{__file__}.said", "w") as file:
            before = context["ti"].xcom_pull(key="before")
            print(before, event, look(), sep="\n", file=file, flush=True)
END_OF_PYTHON
cat >"$T/dags/red.py" <<'END_OF_PYTHON'
from airflow.sdk import DAG
from looks import Looks

with DAG("red", schedule=None):
    Looks(task_id="looks")
END_OF_PYTHON

export AIRFLOW__CORE__MULTI_TEAM=True AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False
export AIRFLOW__API__PORT=18763 AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://127.0.0.1:18763/execution/
export AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST="[{\"name\": \"of-red\", \"team_name\": \"red\",
  \"classpath\": \"airflow.dag_processing.bundles.local.LocalDagBundle\", \"kwargs\": {\"path\": \"$T/dags\"}}]"
{
  airflow db migrate && airflow teams sync
  python - <<'END_OF_PYTHON'
from airflow import settings
from airflow.models import Connection

settings.configure_orm()
with settings.Session() as session:
    session.add(Connection(conn_id="of_red", conn_type="http", host="red.example", team_name="red"))
    session.commit()
END_OF_PYTHON
} >"$T/log" 2>&1 || { tail -n 5 "$T/log"; exit 2; }
setsid airflow standalone >"$T/standalone" 2>&1 &
SESSIONS=$!
setsid airflow triggerer --team-name red --skip-serve-logs >"$T/triggerer" 2>&1 &
SESSIONS=$SESSIONS,$!
for _ in $(seq 150); do
  if [ ! -e "$T/begun" ] && airflow dags trigger red >"$T/log" 2>&1; then
    touch "$T/begun"
  fi
  [ -s "$T/looks.py.said" ] && break
  sleep 2
done
[ -s "$T/looks.py.said" ] || { tail -n 5 "$T/log" "$T/standalone"; exit 2; }
mapfile -t said <"$T/looks.py.said"
echo "in the worker, before the deferral: ${said[0]}"
echo "in the trigger:                     ${said[1]}"
echo "in the worker, after it:            ${said[2]}"
[[ "${said[0]} ${said[2]}" == "found: red.example found: red.example" && ${said[1]} == *"isn't defined"* ]] || exit 1
