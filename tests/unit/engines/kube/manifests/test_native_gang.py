"""Jobs that ask for a gang of Kubernetes' own (`spec.scheduling`, 1.37)."""

from __future__ import annotations

import pytest

from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.spec.errors import SpecError
from tests.unit.engines.kube.manifests.test_manifests import Plain, rendered
from tests.unit.engines.kube.manifests.test_volcano import QUEUE, job, template

ZONE = "topology.kubernetes.io/zone"


def asking(scheduling: Plain, pod: Plain | None = None) -> Plain:
    """A Job of four workers with this `scheduling`."""
    found = job(pod or template(scheduler=None))
    found["spec"]["scheduling"] = scheduling
    return found


@pytest.mark.parametrize(
    ("asked", "fewest", "made"),
    [
        (
            {"schedulingPolicy": {"gang": {"minCount": 2}}},
            2,
            {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"single": {}}},
        ),
        (  # as many as there are, which Kubernetes fills in
            {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"single": {}}},
            None,
            {"schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": {"single": {}}},
        ),
        (
            {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "schedulingConstraints": {"topology": [{"key": ZONE}]},
                "disruptionMode": {"all": {}},
            },
            None,
            {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "schedulingConstraints": {"topology": [{"key": ZONE}]},
                "disruptionMode": {"all": {}},
            },
        ),
    ],
)
def test_a_gang_of_kubernetes_own_becomes_one_of_the_run(
    asked: Plain, fewest: int | None, made: Plain
) -> None:
    spec = from_manifest(asking(asked))
    assert (spec.engine_options["queueing"], spec.workers.min) == ("native", fewest)
    assert rendered(spec)[0]["spec"]["scheduling"] == made


def test_a_job_that_asks_for_no_gang_has_none() -> None:
    assert "scheduling" not in rendered(from_manifest(asking({})))[0]["spec"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            asking({"schedulingPolicy": {"gang": {"minCount": 5}}}),
            "spec.scheduling.schedulingPolicy.gang.minCount: given 5; allowed: an integer from 1 to 4, the number of "
            "workers",
        ),
        (
            asking(
                {"schedulingPolicy": {"gang": {"minCount": 2}}},
                template("torchrun", "--nnodes=1:4", "train.py", scheduler=None),
            ),
            "spec.scheduling.schedulingPolicy.gang.minCount: given 2; allowed: 1, the fewest workers of the run: its "
            "gang needs these",
        ),
        (
            asking({"schedulingPolicy": {"basic": {}}}),
            "spec.scheduling.schedulingPolicy.basic: given {}; allowed: a gang in its place, or no scheduling: the "
            "workers of a run are a gang, or are placed one by one",
        ),
        (
            asking({"disruptionMode": {"all": {}}}),
            "spec.scheduling.schedulingPolicy.gang: this field is required: give `gang: {}` or "
            "`gang: {minCount: N}`, or remove `scheduling`",
        ),
        (
            asking(
                {
                    "schedulingPolicy": {"gang": {}},
                    "schedulingConstraints": {"topology": [{"key": ZONE}, {"key": "rack"}]},
                }
            ),
            "spec.scheduling.schedulingConstraints.topology: given 2; allowed: one entry: all workers are put where "
            "one label is equal",
        ),
        (
            asking({"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}, "single": {}}}),
            "spec.scheduling.disruptionMode: given 'all, single'; allowed: one of all, single",
        ),
        (
            asking({"schedulingPolicy": {"gang": {}}}, template(**{QUEUE: "team"})),
            "spec.scheduling: given 'a gang'; allowed: nothing beside a gang of Volcano's",
        ),
        (
            asking({"schedulingPolicy": {"gang": {}}, "later": 1}),
            "spec.scheduling.later: given 1; allowed: nothing: a run has no word for this field, so it would be lost",
        ),
    ],
)
def test_what_cannot_be_kept_of_a_gang_is_refused_by_name(given: Plain, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_manifest(given)
    assert problem in [str(one) for one in caught.value.problems]


def test_a_queue_of_kueue_is_refused_beside_a_gang() -> None:
    given = asking({"schedulingPolicy": {"gang": {}}})
    given["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    with pytest.raises(SpecError, match=r"metadata.labels.kueue.x-k8s.io/queue-name"):
        from_manifest(given)
