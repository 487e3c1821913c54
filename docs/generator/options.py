"""options.md: what engines and launchers understand, out of their dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any

from airflow_elastic.engines.kube.kinds.elasticjob_options import ElasticJobOptions
from airflow_elastic.engines.kube.kinds.pytorchjob import PyTorchJobOptions
from airflow_elastic.engines.kube.kinds.tensorstack import TensorStackBoard, TensorStackOptions
from airflow_elastic.engines.kube.kinds.trainjob import TrainJobOptions
from airflow_elastic.engines.kube.options import KubeOptions, TensorBoard, Volume
from airflow_elastic.engines.local.engine import _OPTIONS as LOCAL
from airflow_elastic.launchers.builtin import TorchrunOptions
from airflow_elastic.launchers.dlrover import DLRoverOptions
from airflow_elastic.launchers.horovod import HorovodOptions
from generator.markdown import BY, code, docstring, table

_ENGINES: tuple[tuple[str, type], ...] = (
    ("pytorchjob", PyTorchJobOptions),
    ("trainjob", TrainJobOptions),
    ("elasticjob", ElasticJobOptions),
    ("pytorchtrainingjob", TensorStackOptions),
)
_LAUNCHERS: tuple[tuple[str, type], ...] = (
    ("torchrun", TorchrunOptions),
    ("dlrover-run", DLRoverOptions),
    ("horovodrun", HorovodOptions),
)


def options_page() -> str:
    parts = [
        BY,
        "# Options of engines and launchers\n\n## engine_options\n\n### local\n\n",
        table(("option", "meaning"), [(code(name), f"{text}.") for name, text in LOCAL.items()]),
        "\n### All engines on Kubernetes\n\nThe engine `job` has these and no others.\n\n",
        _options(KubeOptions),
        "\nEach of `volumes`:\n\n",
        _options(Volume),
        "\n`tensorboard`:\n\n",
        _options(TensorBoard),
    ]
    for name, cls in _ENGINES:
        parts += [f"\n### {name}\n\nThose above, and\n\n", _options(cls, beside=KubeOptions)]
    parts += [
        "\nIts `tensorboard` has `image` and `resources`, and\n\n",
        _options(TensorStackBoard, beside=TensorBoard),
    ]
    parts.append("\n## launcher_options\n")
    for name, cls in _LAUNCHERS:
        parts += [f"\n### {name}\n\n", _options(cls)]
    return "".join(parts)


def _options(cls: type, beside: type | None = None) -> str:
    _, meanings, _ = docstring(cls.__doc__ or "")
    known = {field.name for field in dataclasses.fields(beside)} if beside else set()
    rows = []
    for field in dataclasses.fields(cls):
        if field.name in known:
            continue
        if field.name not in meanings:
            raise SystemExit(f"{cls.__name__}: the option {field.name} is not described in the docstring")
        rows.append((code(field.name), _default(field), meanings[field.name]))
    return table(("option", "default", "meaning"), rows)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "empty" if field.default_factory is not dataclasses.MISSING else "**required**"
    return "" if field.default in (None, ()) else code(field.default)
