"""What goes wrong with the database of the Brain."""

from __future__ import annotations

from airflow_elastic.spec.errors import ElasticError, InvalidInput

#: The variable with the URL of the database.
URL_VARIABLE = "AIRFLOW_ELASTIC_BRAIN"


class BrainUnfit(InvalidInput):
    """The database can never be that of the Brain, or a package is missing."""


class BrainUnreachable(ElasticError):
    """The database does not answer, or has failed. It may work later."""
