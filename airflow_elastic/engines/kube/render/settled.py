"""A pod template that a user's was laid over, with the engines' own words where these must hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines.kube.render import names


def settled(template: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """A pod template that a user's was laid over, with the engines' words where they must hold.

    Args:
        template: the whole; not changed.
        ours: what the engines wrote, with the training container alone, before anything was laid over it.
    """
    metadata = settled_metadata(template.get("metadata") or {}, ours["metadata"])
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


def settled_metadata(metadata: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Labels and annotations of a pod that a user's were laid over, with the engines' where they must hold."""
    marks = {
        word: {**(metadata.get(word) or {}), **_held(ours[word])}
        for word in ("labels", "annotations")
        if word in ours
    }
    return {**metadata, **marks}


def _held(marks: Mapping[str, str]) -> dict[str, str]:
    """Those that must hold; a user's own may stand in place of the others."""
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
