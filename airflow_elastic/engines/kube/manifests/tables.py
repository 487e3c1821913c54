"""The form of manifests, kind by kind: the fields that are read."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_elastic.engines.kube.render.value_shapes import (
    Reader,
    amount,
    anything,
    boolean,
    container,
    count,
    env,
    fields,
    integer,
    list_of,
    map_of,
    metadata,
    number_or_text,
    resources,
    some,
    template,
    text,
    words,
)

_any_fields = fields({})
_JOB = fields(
    {
        "parallelism": count,
        "completions": count,
        "completionMode": text,
        "suspend": boolean,
        "backoffLimit": count,
        "activeDeadlineSeconds": count,
        "ttlSecondsAfterFinished": count,
        "selector": fields({"matchLabels": words}),
        "manualSelector": boolean,
        "scheduling": fields(
            {
                "schedulingPolicy": fields({"gang": fields({"minCount": count}), "basic": _any_fields}),
                "schedulingConstraints": fields({"topology": list_of(fields({"key": text}, "key"))}),
                "disruptionMode": map_of(_any_fields),
            }
        ),
        "template": template,
    }
)
_PYTORCHJOB = fields(
    {
        "pytorchReplicaSpecs": map_of(
            fields({"replicas": count, "restartPolicy": text, "template": template})
        ),
        "nprocPerNode": number_or_text,
        "elasticPolicy": fields(
            {
                "minReplicas": count,
                "maxReplicas": count,
                "maxRestarts": count,
                "nProcPerNode": count,
                "metrics": some,
            }
        ),
        "runPolicy": fields(
            {
                "cleanPodPolicy": text,
                "ttlSecondsAfterFinished": count,
                "activeDeadlineSeconds": count,
                "backoffLimit": count,
                "suspend": boolean,
                "schedulingPolicy": _any_fields,
                "managedBy": text,
            }
        ),
    }
)
_TRAINER = fields(
    {
        "numNodes": count,
        "numProcPerNode": number_or_text,
        "image": text,
        "command": list_of(text),
        "args": list_of(text),
        "env": env,
        "resourcesPerNode": resources,
    }
)
_TRAINJOB = fields(
    {
        "runtimeRef": fields({"name": text, "kind": text, "apiGroup": text}, "name"),
        "trainer": _TRAINER,
        "suspend": boolean,
        "activeDeadlineSeconds": count,
        "labels": words,
        "annotations": words,
    },
    "runtimeRef",
)
_ELASTICJOB = fields(
    {
        "distributionStrategy": text,
        "optimizeMode": text,
        "brainService": text,
        "resourceLimits": map_of(number_or_text),
        "envs": _any_fields,
        "suspend": boolean,
        "enableDynamicSharding": boolean,
        "enableElasticScheduling": boolean,
        "replicaSpecs": map_of(
            fields(
                {
                    "replicas": count,
                    "restartPolicy": text,
                    "restartCount": count,
                    "autoScale": boolean,
                    "restartTimeout": integer,
                    "priority": text,
                    "template": template,
                }
            )
        ),
    },
    "replicaSpecs",
)
_PYTORCHTRAININGJOB = fields(
    {
        "replicaSpecs": list_of(
            fields(
                {
                    "type": text,
                    "replicas": count,
                    "restartPolicy": text,
                    "scalingWeight": integer,
                    "template": template,
                }
            )
        ),
        "torchrunConfig": fields(
            {
                "enabled": boolean,
                "enable": boolean,
                "minNodes": count,
                "maxRestarts": count,
                "procPerNode": number_or_text,
                "rdzvBackend": text,
                "extraOptions": list_of(text),
            }
        ),
        "elastic": fields(
            {"enabled": boolean, "minReplicas": count, "maxReplicas": count, "expectedReplicas": count}
        ),
        "runPolicy": fields({"backoffLimit": count, "activeDeadlineSeconds": count, "cleanUpPolicy": text}),
        "scheduler": fields({"t9kScheduler": fields({"queue": text, "priority": integer})}),
        "tensorboardSpec": fields({"image": text, "trainingLogFilesets": list_of(text)}),
        "runMode": anything,
    },
    "replicaSpecs",
)
#: For a TrainingRuntime or ClusterTrainingRuntime beside a TrainJob.
RUNTIME = fields(
    {
        "spec": fields(
            {
                "mlPolicy": fields({"numNodes": count, "torch": fields({"numProcPerNode": number_or_text})}),
                "template": fields(
                    {
                        "spec": fields(
                            {
                                "replicatedJobs": list_of(
                                    fields(
                                        {
                                            "name": text,
                                            "template": fields(
                                                {
                                                    "spec": fields(
                                                        {
                                                            "template": fields(
                                                                {
                                                                    "spec": fields(
                                                                        {"containers": list_of(container)}
                                                                    )
                                                                }
                                                            )
                                                        }
                                                    )
                                                }
                                            ),
                                        },
                                        "name",
                                    )
                                )
                            }
                        )
                    }
                ),
            },
        )
    },
    "spec",
)

#: For a PodGroup of Volcano beside a job.
PODGROUP = fields(
    {
        "metadata": metadata,
        "spec": fields(
            {
                "minMember": integer,
                "queue": text,
                "priorityClassName": text,
                "minResources": map_of(amount),
            }
        ),
    }
)


def _whole(spec: Reader) -> Reader:
    return fields({"metadata": metadata, "spec": spec}, "spec")


SHAPES: Mapping[tuple[str, str], Reader] = {
    ("batch", "Job"): _whole(_JOB),
    ("kubeflow.org", "PyTorchJob"): _whole(_PYTORCHJOB),
    ("trainer.kubeflow.org", "TrainJob"): _whole(_TRAINJOB),
    ("elastic.iml.github.io", "ElasticJob"): _whole(_ELASTICJOB),
    ("batch.tensorstack.dev", "PyTorchTrainingJob"): _whole(_PYTORCHTRAININGJOB),
}
