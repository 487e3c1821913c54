"""The names by which others import us or start our programs: none of them may go away."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

TREE = Path(__file__).parents[3]

#: What scripts, engines of others and programs import. None of it needs Airflow.
WITHOUT_AIRFLOW = {
    "airflow_elastic": "__version__",
    "airflow_elastic.control": "Controller Observer Run open_run start_run",
    "airflow_elastic.engines": "Capabilities Engine Finding Job engine_names find_engine",
    "airflow_elastic.engines.api": "Capabilities Engine Finding GROUP Job",
    "airflow_elastic.engines.kube.manifests": "from_manifest",
    "airflow_elastic.frameworks.accelerate": "ElasticRun",
    "airflow_elastic.frameworks.huggingface": "ElasticTrainer",
    "airflow_elastic.frameworks.lightning": "ElasticTrainer",
    "airflow_elastic.launchers": (
        "ACCELERATE DLROVER_RUN HOROVODRUN PYTHON TORCHRUN TORCHRUN_PLAIN Launcher Place find_launcher launcher_names"
    ),
    "airflow_elastic.provider_info": "get_provider_info",
    "airflow_elastic.runtime": (
        "ElasticBatches Session ShardedStream export_weights init load_model load_weights"
    ),
    "airflow_elastic.spec.checkpoint": "CheckpointPolicy",
    "airflow_elastic.spec.errors": (
        "ElasticError EngineError InvalidInput Problem RunDiffers RunMissing SpecError StoreError SubmitRefused"
    ),
    "airflow_elastic.spec.events": "event_to_dict",
    "airflow_elastic.spec.run": "RestartPolicy RunSpec ScaleStep Workers",
    "airflow_elastic.spec.status": "JobStatus Progress RankError Stretch Waiting WorkerPhase WorkerStatus",
    "airflow_elastic.testing.engine_conformance": "EngineConformance",
    "airflow_elastic.testing.fake_engine": "FakeEngine",
    "airflow_elastic.testing.store_conformance": "StoreConformance",
}

#: What DAGs import, what Airflow finds through us, and what its database has of tasks that wait: by these names.
WITH_AIRFLOW = {
    "airflow_elastic.decorators": "elastic_evaluate_task elastic_train_task",
    "airflow_elastic.hooks": "ElasticHook",
    "airflow_elastic.hooks.elastic": "ElasticHook",
    "airflow_elastic.operators": "ElasticCheckpointOperator ElasticEvaluateOperator ElasticPromoteOperator "
    "ElasticPruneOperator ElasticRollbackOperator ElasticScaleOperator ElasticStopOperator ElasticTrainOperator",
    "airflow_elastic.operators.link": "ElasticRunLink",
    "airflow_elastic.operators.evaluate": "ElasticEvaluateOperator",
    "airflow_elastic.operators.promote": "ElasticPromoteOperator ElasticRollbackOperator",
    "airflow_elastic.operators.steering": "ElasticCheckpointOperator ElasticPruneOperator ElasticScaleOperator "
    "ElasticStopOperator",
    "airflow_elastic.operators.train": "ElasticTrainOperator",
    "airflow_elastic.sensors": "ElasticCapacitySensor ElasticCheckpointSensor ElasticHealthSensor ElasticRunSensor",
    "airflow_elastic.sensors.capacity": "ElasticCapacitySensor",
    "airflow_elastic.sensors.checkpoint": "ElasticCheckpointSensor",
    "airflow_elastic.sensors.health": "ElasticHealthSensor",
    "airflow_elastic.sensors.run": "ElasticRunSensor",
    "airflow_elastic.triggers": "ElasticCheckpointEventTrigger ElasticPromotionEventTrigger "
    "ElasticRunConditionTrigger ElasticRunTrigger",
    "airflow_elastic.triggers.assets": "ElasticCheckpointEventTrigger ElasticPromotionEventTrigger",
    "airflow_elastic.triggers.assets.checkpoint": "ElasticCheckpointEventTrigger",
    "airflow_elastic.triggers.assets.promotion": "ElasticPromotionEventTrigger",
    "airflow_elastic.triggers.capacity": "ElasticCapacityTrigger",
    "airflow_elastic.triggers.condition": "ElasticRunConditionTrigger",
    "airflow_elastic.triggers.reached": "ElasticRunReachedTrigger",
    "airflow_elastic.triggers.run": "ElasticRunTrigger",
    "airflow_elastic.web.cli": "get_elastic_cli_commands",
    "airflow_elastic.web.plugin": "ElasticPlugin",
}

#: What is started as `python -m`: by people, and in pods by manifests that another version may have rendered.
PROGRAMS = ("airflow_elastic.cli", "airflow_elastic.runtime.pod")

ENTRY_POINTS = {
    "apache_airflow_provider": {"provider_info"},
    "airflow.plugins": {"airflow_elastic"},
    "airflow_elastic.engines": {
        *("local", "job", "trainjob", "pytorchjob", "elasticjob", "pytorchtrainingjob"),
    },
    "airflow_elastic.launchers": {
        *("torchrun", "torchrun-plain", "accelerate", "python", "dlrover-run", "horovodrun"),
    },
    "console_scripts": {"airflow-elastic"},
}

#: Says of each module and its names which are missing: there, and in its `__all__` where that lists what is public.
_LOOK = """
import importlib, json, sys
missing = []
for name, wanted in json.loads(sys.argv[1]).items():
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        missing.append(f"{name}: {error}")
        continue
    listed = getattr(module, "__all__", wanted)
    missing += [f"{name}.{one}" for one in wanted if not hasattr(module, one) or one not in listed]
    if hasattr(module, "__all__") and name.count(".") == 1:
        missing += [f"{name}.{one} is not in the list of this test" for one in listed if one not in wanted]
print(json.dumps(missing))
print(json.dumps("airflow" in sys.modules))
"""

_PACKAGES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


def missing(names: dict[str, list[str]]) -> tuple[list[str], bool]:
    """What another process does not find, and whether it has imported Airflow."""
    command = [sys.executable, "-P", "-c", _LOOK, json.dumps(names)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return json.loads(lines[-2]), json.loads(lines[-1])


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def test_names_that_need_no_airflow() -> None:
    names = {
        module: one.split()
        for module, one in WITHOUT_AIRFLOW.items()
        if installed(_PACKAGES.get(module.rpartition(".")[2], "torch"))
    }
    assert missing(names) == ([], False)


@pytest.mark.skipif(not installed("airflow"), reason="Airflow is not installed")
def test_names_that_airflow_has() -> None:
    found, _ = missing({module: one.split() for module, one in WITH_AIRFLOW.items()})
    assert found == []


@pytest.mark.parametrize("module", PROGRAMS)
def test_programs(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    main = (
        found if found.submodule_search_locations is None else importlib.util.find_spec(f"{module}.__main__")
    )
    assert main is not None
    assert main.origin is not None
    assert '__name__ == "__main__"' in (source := Path(main.origin).read_text()) or "main()" in source


def test_entry_points() -> None:
    """Those of the distribution, each of which is there."""
    ours = importlib.metadata.distribution("airflow-elastic").entry_points
    for group, names in ENTRY_POINTS.items():
        found = {one.name: one for one in ours if one.group == group}
        assert found.keys() == names, group
        if group not in ("airflow.plugins",):
            for one in found.values():
                one.load()


def test_names_that_documents_and_examples_have() -> None:
    """Whatever they import or name of ours in full is there."""
    names: dict[str, list[str]] = {}
    for path in [
        TREE / "README.md",
        *(TREE / "docs").glob("*.md"),
        *(TREE / "docs" / "how-to").rglob("*.md"),
    ]:
        if path.exists():
            for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
                for module, one in imports(code):
                    names.setdefault(module, []).append(one)
    for folder in ("examples", "dags"):
        for path in (TREE / folder).rglob("*.py"):
            for module, one in imports(path.read_text()):
                names.setdefault(module, []).append(one)
    assert "airflow_elastic.operators" in names
    here = installed("airflow")
    wanted = {
        module: list({*ones} - {""})
        for module, ones in names.items()
        if (here or module not in WITH_AIRFLOW)
        and installed(_PACKAGES.get(module.rpartition(".")[2], "torch"))
    }
    found, _ = missing(wanted)
    assert [one for one in found if "is not in the list" not in one] == []


def imports(code: str) -> Iterator[tuple[str, str]]:
    """Modules of ours that a piece of code imports, and names from them."""
    try:
        parsed = ast.parse(code)
    except SyntaxError:  # an extract
        return
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_elastic"):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("airflow_elastic"))


def test_modules_that_the_provider_names() -> None:
    """Airflow imports them by what `provider_info` says."""
    from airflow_elastic.provider_info import get_provider_info

    listed = yaml.safe_dump(get_provider_info())
    words = {*re.findall(r"airflow_elastic(?:\.\w+)+", listed)}
    known = {
        *WITH_AIRFLOW,
        *(f"{module}.{one}" for module, ones in WITH_AIRFLOW.items() for one in ones.split()),
    }
    assert words <= known
