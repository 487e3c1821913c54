#!/usr/bin/env bash
# Airflow: a mapped task cannot start if its operator has a base class that begins with a mixin and has no constructor.
#
# Versions: apache-airflow 3.3.2 (task SDK 1.3.2), Python 3.11.
# Guess: `class Shared(Mixin, BaseOperator)` may share methods between operators, whether or not it has a constructor.
# Seen: `partial()` takes default values from the signatures of all constructors between an operator and BaseOperator.
#   The metaclass gives each class a wrapped constructor whose own is not that of the class after it in the method
#   resolution order. With a mixin first, that is so without any constructor, and the one that is wrapped is
#   BaseOperator's, where inlets and outlets are None. So None replaces the empty list. The DAG is parsed and scheduled,
#   the task succeeds without mapping, and each mapped one fails before its `execute`. Without the mixin, or with a
#   constructor that only calls the next one, they succeed.
# Why it matters: families of operators share such classes, and people map a training over its parameters.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" apache-airflow==3.3.2 apache-airflow-task-sdk==1.3.2
} || exit 2
mkdir "$T/home" "$T/dags"
export AIRFLOW_HOME=$T/home AIRFLOW__CORE__DAGS_FOLDER=$T/dags AIRFLOW__CORE__LOAD_EXAMPLES=False

cat >"$T/dags/mapped.py" <<'END'
from airflow.sdk import DAG, BaseOperator


class Mixin:
    """Methods for some operators."""


class Shared(Mixin, BaseOperator):
    """What several operators have in common."""

    def execute(self, context):
        print(f"number {self.number} was executed")


class SharedWithConstructor(Mixin, BaseOperator):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def execute(self, context):
        print(f"number {self.number} was executed")


def operator(base):
    class Operator(base):
        def __init__(self, *, number, **kwargs):
            super().__init__(**kwargs)
            self.number = number

    return Operator


with DAG("constructor", schedule=None) as constructor:
    operator(SharedWithConstructor).partial(task_id="t").expand(number=[1, 2])
with DAG("unmapped", schedule=None) as unmapped:
    operator(Shared)(task_id="t", number=1)
with DAG("mapped", schedule=None) as mapped:
    operator(Shared).partial(task_id="t").expand(number=[1, 2])

if __name__ == "__main__":
    import sys

    print("inlets of the mapped task:", globals()[sys.argv[1]].get_task("t").inlets)
END

"$T/venv/bin/airflow" db migrate >"$T/migrate" 2>&1 || { tail -n 5 "$T/migrate"; exit 2; }
state() { # how a test of the DAG ends
  "$T/venv/bin/airflow" dags test "$1" >"$T/$1" 2>&1 || true
  if grep -q "state=success" "$T/$1"; then echo success; else echo failed; fi
}
inlets() { "$T/venv/bin/python" "$T/dags/mapped.py" "$1" | grep '^inlets'; }

right=$(state constructor) single=$(state unmapped) wrong=$(state mapped)
echo "mapped, the class has a constructor:     $right ($(inlets constructor))"
echo "not mapped, the class has none:          $single"
echo "mapped, the class has none:              $wrong ($(inlets mapped))"
grep -h "NoneType" "$T/mapped" | head -n 1 || true
[ "$right $single $wrong" = "success success failed" ] || exit 1
[ "$(inlets mapped)" = "inlets of the mapped task: None" ] || exit 1
