"""The CRD of ElasticJobs on a cluster: DLRover publishes two forms, and one lacks fields that we write.

The form in `helm_install/crds` has labels and annotations in templates, and `suspend`. DLRover's documents recommend
`manifests/bases`, which has neither; its templates have no metadata at all. DLRover needs none there: it labels its
pods itself.
"""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Forbidden
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.api import Finding
from airflow_elastic.engines.kube.render.crd_schema import keeps_field
from airflow_elastic.spec.errors import SubmitRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_elastic.adapters.kube import Client
    from airflow_elastic.engines.kube.options import KubeOptions

log = logging.getLogger(__name__)

_GROUP, _VERSION, _NEEDS = "elastic.iml.github.io", "v1alpha1", "the DLRover operator"
ELASTICJOBS = Resource(_GROUP, _VERSION, "elasticjobs", "ElasticJob", needs=_NEEDS)

_METADATA = ("labels", "annotations")

#: Options for fields that only some versions have.
_FIELDS = {
    "suspend": "suspend",
    "enable_dynamic_sharding": "enableDynamicSharding",
    "enable_elastic_scheduling": "enableElasticScheduling",
}

_BETTER = "the CRD in helm_install/crds of DLRover has them, the one in manifests/bases has not"

Rendered = list[tuple[Resource, dict[str, Any]]]


async def fitted(client: Client, rendered: Rendered, options: KubeOptions) -> Rendered:
    """Rendered objects without the fields that the installed kind lacks, if DLRover does not need them.

    Args:
        client: of the cluster.
        rendered: the objects to create.
        options: that they were rendered with.

    Raises:
        SubmitRefused: the objects should be queued, but Kueue could not find the pods.
    """
    lacking = _lacking(await _schema(client))
    if not lacking:
        return rendered
    what = " and ".join(lacking)
    if options.by_kueue:
        raise SubmitRefused(
            f"engine_options.queue cannot be used: ElasticJobs of {client.server} have no {what} in their templates, "
            f"by which Kueue finds the workers; {_BETTER}"
        )
    asked = options.labels or options.annotations or options.pod_template.get("metadata")
    level, words = (
        logging.WARNING if asked else logging.INFO,
        "ElasticJobs of %s have no %s in their templates; %s",
    )
    log.log(level, f"{words}: pods go without those of engine_options", client.server, what, _BETTER)
    return [(resource, _without(body, lacking)) for resource, body in rendered]


async def findings(client: Client, namespace: str) -> list[Finding]:
    """The findings of `doctor` about the installed kind, which is the same in all namespaces."""
    schema = await _schema(client)
    found = []
    if lacking := _lacking(schema):
        text = f"there are no {' and '.join(lacking)}: pods do not get them, and queue is refused; {_BETTER}"
        found.append(Finding("elasticjob: templates", False, text, needed=False, part=True))
    if absent := [option for option, theirs in _FIELDS.items() if not keeps_field(schema, "spec", theirs)]:
        text = f"the installed kind has no {', '.join(absent)}"
        found.append(Finding("elasticjob: options", False, text, needed=False, part=True))
    return found


async def _schema(client: Client) -> dict[str, Any]:
    """The schema of the installed kind; empty without the right to read it."""
    try:
        return await client.schema(ELASTICJOBS)
    except Forbidden:
        return {}


def _lacking(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The metadata that templates cannot hold."""
    where = ("spec", "replicaSpecs", "worker", "template", "metadata")
    return tuple(word for word in _METADATA if not keeps_field(schema, *where, word))


def _without(body: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    for one in body["spec"]["replicaSpecs"].values():
        for word in words:
            one["template"]["metadata"].pop(word, None)
    return body
