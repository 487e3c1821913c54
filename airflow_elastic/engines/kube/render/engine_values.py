"""A merged pod template, in which the engines' values win where they must."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines.kube.render import names


def with_engine_values(template: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """A merged pod template, in which the engines' values win where they must.

    Args:
        template: the merged one; not changed.
        ours: the engines' own template before the merge, with only the training container.
    """
    metadata = metadata_with_engine_values(template.get("metadata") or {}, ours["metadata"])
    spec = {name: value for name, value in template["spec"].items() if name != "activeDeadlineSeconds"}
    spec["restartPolicy"] = ours["spec"]["restartPolicy"]
    name = "terminationGracePeriodSeconds"
    spec[name] = (
        max(spec[name], ours["spec"][name]) if isinstance(spec.get(name), int) else ours["spec"][name]
    )
    (trainer,) = ours["spec"]["containers"]
    spec["containers"] = [
        _trainer(one, trainer) if one["name"] == trainer["name"] else one
        for one in template["spec"]["containers"]
    ]
    return {**template, "metadata": metadata, "spec": spec}


def metadata_with_engine_values(metadata: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Merged labels and annotations of a pod, in which the engines' values win where they must."""
    marks = {
        word: {**(metadata.get(word) or {}), **_held(ours[word])}
        for word in ("labels", "annotations")
        if word in ours
    }
    return {**metadata, **marks}


def _held(marks: Mapping[str, str]) -> dict[str, str]:
    """The values that must win; a user's own may replace the others."""
    return {
        name: value
        for name, value in marks.items()
        if name.startswith(names.PREFIX) or name == names.GROUP_ANNOTATION
    }


def _trainer(container: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    left_out = ("restartPolicy", "restartPolicyRules")
    found = {name: value for name, value in container.items() if name not in left_out}
    fixed = {one["name"]: one for one in ours["env"] if one["name"] in names.VARIABLES}
    found["env"] = [fixed.get(one["name"], one) for one in found["env"]]
    path = found.get("terminationMessagePath", names.TERMINATION_LOG)
    if path != names.TERMINATION_LOG:
        found["env"].append({"name": f"{names.VARIABLE_PREFIX}TERMINATION", "value": path})
    return found
