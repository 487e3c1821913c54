"""What Airflow reads when it finds this package: hooks, links, decorators, connection types."""

from __future__ import annotations

from typing import Any

import airflow_elastic

_TEXT = ["string", "null"]


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as the entry point `apache_airflow_provider` promises."""
    return {
        "package-name": "airflow-elastic",
        "name": "Elastic training",
        "description": "Elastic, fault-tolerant training as one task of a DAG.",
        "versions": [airflow_elastic.__version__],
        "integrations": [
            {
                "integration-name": "Elastic training",
                "external-doc-url": "https://pytorch.org/docs/stable/elastic/run.html",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": "Elastic training",
                "python-modules": [
                    "airflow_elastic.operators.train",
                    "airflow_elastic.operators.evaluate",
                    "airflow_elastic.operators.promote",
                    "airflow_elastic.operators.steering",
                ],
            }
        ],
        "hooks": [
            {"integration-name": "Elastic training", "python-modules": ["airflow_elastic.hooks.elastic"]}
        ],
        "sensors": [
            {
                "integration-name": "Elastic training",
                "python-modules": [
                    "airflow_elastic.sensors.run",
                    "airflow_elastic.sensors.checkpoint",
                    "airflow_elastic.sensors.health",
                    "airflow_elastic.sensors.capacity",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "Elastic training",
                "python-modules": [
                    "airflow_elastic.triggers.run",
                    "airflow_elastic.triggers.condition",
                    "airflow_elastic.triggers.capacity",
                    "airflow_elastic.triggers.assets",
                ],
            }
        ],
        "task-decorators": [
            {"name": "elastic_train", "class-name": "airflow_elastic.decorators.elastic_train_task"},
            {"name": "elastic_evaluate", "class-name": "airflow_elastic.decorators.elastic_evaluate_task"},
        ],
        "extra-links": ["airflow_elastic.operators.link.ElasticRunLink"],
        "cli": ["airflow_elastic.web.cli.get_elastic_cli_commands"],
        "connection-types": [_connection_type()],
        "config": {
            "elastic": {
                "description": "Elastic training.",
                "options": {
                    "run_root": {
                        "description": "The place for runs without a run_uri: a folder, or s3://bucket/prefix. "
                        "A run_root of the connection comes first.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "s3://training/runs",
                        "default": None,
                    },
                    "page_roots": {
                        "description": "Folders and prefixes, with commas between them. The page of a run may read "
                        "below these and run_root. Name places here if tasks have a run_uri elsewhere. The page reads "
                        "with the rights of the API server.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "s3://training/shared,/mnt/runs",
                        "default": None,
                    },
                },
            }
        },
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "elastic",
        "hook-class-name": "airflow_elastic.hooks.elastic.ElasticHook",
        "hook-name": "Elastic training",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
            "relabeling": {},
            "placeholders": {},
        },
        "conn-fields": {
            "run_root": {
                "label": "Run root",
                "description": "The place for runs: a folder that all machines share, or s3://bucket/prefix. "
                "Default: [elastic] run_root, else AIRFLOW_HOME/elastic-runs.",
                "schema": {"type": _TEXT, "default": None},
            },
            "engine": {
                "label": "Engine",
                "description": "Where workers run, for tasks that name no engine. Default: local.",
                "schema": {"type": _TEXT, "default": "local"},
            },
            "aws_conn_id": {
                "label": "AWS connection",
                "description": "Id of the connection with credentials for s3:// runs. Default: boto3's own chain.",
                "schema": {"type": _TEXT, "default": None},
            },
            "kubernetes_conn_id": {
                "label": "Kubernetes connection",
                "description": "Id of the connection to the cluster of engines whose workers are pods. "
                "Default: KUBECONFIG, ~/.kube/config, or the pod's own service account.",
                "schema": {"type": _TEXT, "default": None},
            },
            "namespace": {
                "label": "Namespace",
                "description": "Where workers on a cluster run, for tasks whose engine_options name none. "
                "The Test button asks for the rights there. Default: default.",
                "schema": {"type": _TEXT, "default": None},
            },
            "queue": {
                "label": "Queue",
                "description": "Where workers on a cluster wait, if engine_options of a task name none. A LocalQueue "
                "of Kueue. The Test button says what is free in it. Default: no queue.",
                "schema": {"type": _TEXT, "default": None},
            },
        },
    }
