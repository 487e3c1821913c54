"""Fine-tuning from a promoted base with a Hugging Face model: `dags/digits_finetune.py`."""

from __future__ import annotations

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import open_run
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS

DAG = "digits_finetune"


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_fine_tuned_model_is_better_than_its_base_and_its_record_names_it(standalone: Standalone) -> None:
    pytest.importorskip("transformers")
    standalone.wait_for_dag(DAG)
    dag_run = standalone.trigger(DAG, {"base_epochs": 6, "epochs": 12})
    standalone.wait_run(DAG, dag_run, timeout=3 * PATIENCE_SECONDS)
    base, tuned = (
        promotions.current(open_store(f"{standalone.home}/digits/{name}")) for name in ("base", "tuned")
    )
    assert base is not None
    assert tuned is not None

    origin = open_run(standalone.xcom(DAG, dag_run, "finetune", "run_uri")).state.origin
    assert origin is not None
    assert (origin.promotion, origin.run) == (base.number, base.run)
    assert tuned.lineage.origin is not None
    assert tuned.lineage.origin["promotion"] == base.number
    assert tuned.lineage.origin["source"] == f"{standalone.home}/digits/base"

    before, after = (
        standalone.xcom(DAG, dag_run, task)["metrics"]["accuracy"] for task in ("evaluate_base", "evaluate")
    )
    assert before < 0.85, "it has never seen an 8 or a 9"
    assert after > before
    assert tuned.metrics["accuracy"] == after
    assert "of digit 9: 0% right" in standalone.task_log(DAG, dag_run, "evaluate_base")
    assert "of digit 9: 0% right" not in standalone.task_log(DAG, dag_run, "evaluate")
