"""What Airflow reads when it finds this package: hooks, links, decorators, connection types."""

from __future__ import annotations

from typing import Any

import airflow_elastic


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as the entry point `apache_airflow_provider` promises."""
    return {
        "package-name": "airflow-elastic",
        "name": "Elastic training",
        "description": "Elastic, fault-tolerant training as one task of a DAG.",
        "versions": [airflow_elastic.__version__],
    }
