"""What operators on a model URI share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.lineage import ModelLineage
from airflow_elastic.operators.task.outlets import tell_outlets
from airflow_elastic.operators.task.parameters import is_missing, is_templated, uri_problem
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.models import Promotion


class OnModel(ModelLineage, BaseOperator):
    """A task that changes which model is promoted.

    Args:
        model_uri: where promoted models are kept.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
    """

    template_fields: Sequence[str] = ("model_uri", "why", "elastic_conn_id", "aws_conn_id")
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        model_uri: str,
        why: str | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_uri, self.why = model_uri, why
        self.elastic_conn_id, self.aws_conn_id = elastic_conn_id, aws_conn_id
        if not is_templated(model_uri) and (problem := uri_problem(model_uri, "model_uri")) is not None:
            raise SpecError(problem).below(self.task_id)

    def _hook(self) -> ElasticHook:
        return ElasticHook(self.elastic_conn_id, aws_conn_id=self.aws_conn_id)

    def _model(self) -> Store:
        """The storage of the model URI. Raises AirflowFailException if the URI is not valid."""
        if (problem := uri_problem(self.model_uri, "model_uri")) is not None:
            raise AirflowFailException(str(problem))
        return self._hook().open_store(self.model_uri)

    def _told(self, context: Context, record: Promotion) -> dict[str, Any]:
        """The record as the task's result; the events of its outlets get it, too."""
        self._made = self.model_uri, record
        plain: dict[str, Any] = encode(record)
        tell_outlets(context, {"model_uri": self.model_uri, **plain})
        return plain


def whole_number(name: str, value: Any, least: int) -> int | None:
    """A number, which a template may have rendered to text; or None. Raises AirflowFailException for another value."""
    if (problem := number_problem(name, value, least)) is not None:
        raise AirflowFailException(str(problem))
    return None if is_missing(value) else int(value)


def number_problem(name: str, value: Any, least: int) -> Problem | None:
    """What is wrong with a number, or its text. None if it is valid, or not given."""
    if is_missing(value):
        return None
    text = value.strip() if isinstance(value, str) else value
    number = int(text) if isinstance(text, str) and text.isdecimal() else text
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        return Problem(name, value, f"an integer, at least {least}")
    return None


def who(ti: Any) -> str:
    """The task, in words: `dag.task (DAG run)`."""
    return f"{ti.dag_id}.{ti.task_id} ({ti.run_id})"
