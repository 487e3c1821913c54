"""Gives the database of an Airflow a DAG run, a task instance and the run's place for each line that it is given.

`fill_airflow.py < LINES`: a line is DAG, DAG run, state and run URI, with tabs between them. It runs in the environment
of that Airflow, whose DAGs have a task `train`.
"""

import sys
from itertools import groupby

from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.timezone import utcnow
from airflow.utils.types import DagRunTriggeredByType, DagRunType

lines = sorted(line.rstrip("\n").split("\t") for line in sys.stdin)
for dag_id, rows in groupby(lines, key=lambda line: line[0]):
    with create_session() as session:
        model = SerializedDagModel.get(dag_id, session=session)
        assert model is not None, dag_id
        for _, run_id, state, uri in rows:
            now = utcnow()
            run = model.dag.create_dagrun(
                run_id=run_id,
                run_after=now,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.SUCCESS if state == "success" else DagRunState.RUNNING,
                start_date=now,
                session=session,
            )
            for ti in run.task_instances:
                ti.state, ti.try_number, ti.start_date = state, 1, now
                fields = {"run_uri": uri, "elastic_conn_id": None, "aws_conn_id": None}
                session.add(Rendered(ti, render_templates=False, rendered_fields=fields))
            session.flush()
            XComModel.set("run_uri", uri, dag_id=dag_id, task_id="train", run_id=run_id, session=session)
