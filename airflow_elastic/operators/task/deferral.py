"""Hand a trigger over to the triggerer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.triggers.json_kwargs import require_json

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger


def check_trigger(trigger: BaseTrigger) -> None:
    """Refuse arguments that would end the triggerer. Raises AirflowFailException."""
    try:
        require_json(trigger.serialize()[1])
    except InvalidInput as error:
        raise AirflowFailException(str(error)) from error
