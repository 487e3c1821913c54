"""Features of Airflow that work with the operators: its name, how it works, and the test that shows it."""

from __future__ import annotations

OPERATOR, PAGE, UNITS = "tests/airflow/test_operator.py", "tests/airflow/test_page.py", "tests/airflow/units"

AROUND = (
    (
        "retry, clear, mark",
        "The next try takes the run over. A task that is marked ends its run.",
        f"{OPERATOR}::test_a_cleared_task_takes_its_run_over_and_training_never_stops",
    ),
    (
        "the same for every sensor and other operator",
        "After a clear, a retry or a lost triggerer it goes on, and does its work once. So does each mapped instance.",
        "tests/airflow/test_waits.py",
    ),
    (
        "dynamic mapping",
        "Each task instance has a run of its own.",
        f"{OPERATOR}::test_mapped_instances_have_a_run_each",
    ),
    (
        "backfill",
        "Each DAG run has a run of its own.",
        f"{OPERATOR}::test_a_backfill_trains_once_for_each_day",
    ),
    (
        "`airflow dags test`, `airflow tasks test`",
        "In a database without a live triggerer and scheduler: these would take the trigger, too.",
        f"{PAGE}::test_a_dag_is_tested_to_its_end",
    ),
    (
        "deadline alerts",
        "They fire while the task is deferred.",
        f"{OPERATOR}::test_callbacks_are_told_while_the_task_is_deferred",
    ),
    (
        "assets, `AssetWatcher`",
        "A promotion or a checkpoint from anywhere starts a DAG, once.",
        "tests/airflow/test_promotion.py",
    ),
    (
        "several triggerers",
        "A run that moves to another triggerer trains on.",
        f"{OPERATOR}::test_a_trigger_that_moves_to_another_triggerer_is_left_alone",
    ),
    (
        "PostgreSQL",
        "With two triggerers and a retry at once there is one attempt at a time.",
        "tests/cluster/test_two_triggerers.py",
    ),
    (
        "several schedulers and triggerers",
        "If one is killed while tasks wait, the others go on. Each task does its work once.",
        "tests/airflow/test_postgres.py",
    ),
    (
        "teams",
        "Each team has its connection, its DAG bundle, its triggerer and its pages. Airflow 3.3 gives a triggerer no "
        "connection of a team: set it in the environment of that team's triggerer, as `AIRFLOW_CONN_<ID>`.",
        "tests/airflow/test_bundles.py::test_each_team_has_its_connection_and_its_pages",
    ),
    (
        "DAG bundles in git",
        "A try goes on with the commit of its DAG run. One that is cleared to the newest commit carries the run on.",
        "tests/airflow/test_bundles.py::test_a_run_goes_on_with_its_own_commit_and_after_its_end_with_a_new_one",
    ),
    (
        "DAG bundles",
        "A new version of the bundle carries the same run on.",
        "tests/unit/spec/test_identity.py",
    ),
    (
        "OpenLineage, OpenTelemetry, StatsD",
        "Facets and metrics of each run.",
        "tests/airflow/test_outside.py",
    ),
)
