"""operator.md: what Airflow sees. Read with griffe, so that Airflow need not be installed."""

from __future__ import annotations

import re
from pathlib import Path

import griffe

from airflow_elastic.provider_info import get_provider_info
from generator.around import AROUND
from generator.markdown import BY, code, docstring, fence, prose, table

ROOT = Path(__file__).parents[2]


#: Operators, sensors, and triggers for an AssetWatcher, in the order of the page.
CLASSES = (
    "operators.train.ElasticTrainOperator",
    "operators.evaluate.ElasticEvaluateOperator",
    "operators.promote.ElasticPromoteOperator",
    "operators.promote.ElasticRollbackOperator",
    "operators.steering.ElasticScaleOperator",
    "operators.steering.ElasticCheckpointOperator",
    "operators.steering.ElasticStopOperator",
    "operators.steering.ElasticPruneOperator",
    "sensors.capacity.ElasticCapacitySensor",
    "sensors.run.ElasticRunSensor",
    "sensors.checkpoint.ElasticCheckpointSensor",
    "sensors.health.ElasticHealthSensor",
    "triggers.assets.checkpoint.ElasticCheckpointEventTrigger",
    "triggers.assets.promotion.ElasticPromotionEventTrigger",
)


def operator_page() -> str:
    package = griffe.load(
        "airflow_elastic",
        search_paths=[str(ROOT)],
        allow_inspection=False,
        submodules=True,
        try_relative_path=False,
    )
    return "".join(
        (
            BY,
            "# In Airflow\n\n",
            "Everything here is imported from `airflow_elastic.operators`, `airflow_elastic.sensors` or\n"
            "`airflow_elastic.triggers`. Decorators come by themselves. Operators and sensors take the parameters of\n"
            "`BaseOperator` (`retries`, `pool`, …), too.\n\n",
            table(("", "what it does"), [_in_short(package[path]) for path in CLASSES]),
            "\n",
            _class_section("ElasticTrainOperator", package[CLASSES[0]]),
            _decorator_section("elastic_train", package["decorators.train.elastic_train_task"]),
            _decorator_section("elastic_evaluate", package["decorators.evaluate.elastic_evaluate_task"]),
            *(_class_section(path.rpartition(".")[2], package[path]) for path in CLASSES[1:]),
            _around_section(),
            _connection_section(),
        )
    )


def _in_short(cls: griffe.Class) -> tuple[str, str]:
    """Link and first sentence of a class."""
    words, _, _ = docstring(cls.docstring.value if cls.docstring else "")
    return f"[{cls.name}](#{cls.name.lower()})", words.split("\n\n")[0].replace("\n", " ")


def _around_section() -> str:
    """Features of Airflow that work with these parts, each line with its test."""
    rows = [(what, how, code(test)) for what, how, test in AROUND]
    return "## Features of Airflow that work\n\n" + table(("", "how", "test"), rows) + "\n"


def _class_section(name: str, cls: griffe.Class) -> str:
    words, entries, raises = docstring(cls.docstring.value if cls.docstring else "")
    others = entries.pop("kwargs", None)  # those of another operator, which has a section of its own
    takes_others = any(one.name == "kwargs" for one in cls.all_members["__init__"].parameters)
    parameters = _parameters(cls, with_bases=takes_others and others is None)
    if missing := parameters.keys() - entries:
        raise SystemExit(f"{name}: the parameters {sorted(missing)} are not described in the docstring")
    if unknown := entries.keys() - parameters:
        raise SystemExit(f"{name}: the docstring describes {sorted(unknown)}, which are no parameters")
    rows = []
    for parameter in (parameters[known] for known in entries):
        default = "**required**" if parameter.default is None else code(parameter.default)
        if default == "`None`":
            default = ""
        default = default.replace("ElasticHook.default_conn_name", "'elastic_default'")
        rows.append((code(parameter.name), code(parameter.annotation), default, entries[parameter.name]))
    if others is not None:
        rows.append((code("**kwargs"), "", "", others))
    parts = [
        f"## {name}\n\n",
        prose(words),
        "\n",
        table(("parameter", "type", "default", "meaning"), rows),
        "\n",
    ]
    if (fields := cls.all_members.get("template_fields")) is not None:
        templated = ", ".join(code(text) for text in re.findall(r"'(\w+)'", str(fields.value)))
        parts.append(f"Templated: {templated}.\n\n")
    parts += [f"Raises `{kind}` {text}\n\n" for kind, text in raises]
    return "".join(parts)


def _parameters(cls: griffe.Class, *, with_bases: bool) -> dict[str, griffe.Parameter]:
    """The parameters of the class, and of its bases in this package."""
    found: dict[str, griffe.Parameter] = {}
    bases = [base for base in cls.mro() if base.path.startswith("airflow_elastic.") and with_bases]
    for one in (cls, *bases):
        if "__init__" in one.members:
            for parameter in one["__init__"].parameters:
                if parameter.name not in ("self", "kwargs"):
                    found.setdefault(parameter.name, parameter)
    return found


def _decorator_section(name: str, function: griffe.Function) -> str:
    words, _, _ = docstring(function.docstring.value if function.docstring else "")
    return f"## @task.{name}\n\n{prose(words.replace('; `kwargs` are', '. Its parameters are'))}\n"


def _connection_section() -> str:
    info = get_provider_info()
    (connection,) = info["connection-types"]
    rows = [
        (code(name), field["label"], field["description"])
        for name, field in connection["conn-fields"].items()
    ]
    options = [
        (f"`[{section}] {name}`", option["example"] or "", option["description"])
        for section, content in info["config"].items()
        for name, option in content["options"].items()
    ]
    environment = (
        'AIRFLOW_CONN_ELASTIC_DEFAULT=\'{"conn_type": "elastic", "extra": {"run_root": "/mnt/runs"}}\''
    )
    return (
        "## The connection\n\n"
        f"Connections of the type `{connection['connection-type']}` say where runs are stored and where workers run.\n"
        "The default one, `elastic_default`, need not exist.\n\n"
        + table(("field", "label", "meaning"), rows)
        + "\nAs an environment variable:\n\n"
        + fence(f"export {environment}", "sh")
        + "\nIn Airflow's configuration:\n\n"
        + table(("option", "example", "meaning"), options)
    )
