"""A person decides, on Airflow's page of required actions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowSkipException, TaskAwaitingInput
from airflow.sdk.execution_time.hitl import upsert_hitl_detail

from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_elastic.control.models import Candidate

#: The answers. Without one in time, the second counts.
PROMOTE, REFUSE = "Promote", "Refuse"


class Approval:
    """Asks whether a candidate may be promoted. While it waits, the task uses neither a worker nor a triggerer."""

    approvers: Sequence[Mapping[str, str]] | None
    approval_timeout: timedelta | None

    def _ask(self, context: Context, candidate: Candidate, model: str, source: str) -> NoReturn:
        """Ask, then wait for the answer: Airflow calls `decided` with it."""
        ti = context["ti"]
        upsert_hitl_detail(
            ti_id=ti.id,
            options=[PROMOTE, REFUSE],
            subject=f"Promote checkpoint {candidate.manifest.step} to {model}?",
            body=question(candidate, model, source),
            defaults=[REFUSE],
            multiple=False,
            params={},
            assigned_users=[{"id": one["id"], "name": one["name"]} for one in self.approvers or ()],
        )
        with contextlib.suppress(
            ElasticError
        ):  # without the right to write; if it is removed, the end says so
            candidate.keep(by=waiting(ti))
        raise TaskAwaitingInput(
            method_name="decided", kwargs={"step": candidate.manifest.step}, timeout=self.approval_timeout
        )

    def _agreed(self, event: Mapping[str, Any]) -> str:
        """Who has agreed. Raises AirflowSkipException if somebody refused, or nobody answered in time."""
        person = (event.get("responded_by_user") or {}).get("name") or "somebody"
        if event.get("chosen_options") == [PROMOTE]:
            return str(person)
        if event.get("timedout") or "error" in event:
            raise AirflowSkipException("not promoted: nobody has agreed in time")
        raise AirflowSkipException(f"not promoted: {person} has refused it")


def waiting(ti: Any) -> str:
    """Who keeps the checkpoint meanwhile: each mapped task instance for itself."""
    index = "" if ti.map_index is None or ti.map_index < 0 else f"[{ti.map_index}]"
    return f"waits for approval in {ti.dag_id}.{ti.task_id}{index} ({ti.run_id})"


def question(candidate: Candidate, model: str, source: str) -> str:
    """What a person needs to decide, in Markdown."""
    before = candidate.compared
    known = before.metrics if before else {}
    rows = [
        f"| {name} | {value:g} | {f'{known[name]:g}' if name in known else '–'} |"
        for name, value in sorted(candidate.metrics.items())
    ]
    now = f"promotion {before.number} of `{model}`" if before else f"nothing; `{model}` has no promotion yet"
    head = ["| metric | candidate | promoted now |", "| --- | --- | --- |"]
    rule = [f"The rule `{candidate.rule}` holds.", ""] if candidate.rule else []
    return "\n".join(
        [
            f"Candidate: checkpoint {candidate.manifest.step} of `{source}`. Promoted now: {now}.",
            "",
            *rule,
            *head,
            *rows,
        ]
    )
