"""What OpenLineage gets of a task. Only where `apache-airflow-providers-openlineage` is installed, which calls this.

Of a training: a run facet with the course of the run. What it has started from is an input dataset, its newest
checkpoint an output. Of a promotion: the checkpoint is an input, and the model URI the output. So the two make a chain.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_elastic.core.goodput import goodput, goodput_share
from airflow_elastic.operators.task.result import newest_checkpoint
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.control.runs import Run
    from airflow_elastic.spec.models import Promotion

#: Name of the run facet.
FACET = "elastic_run"


class Lineage:
    """The methods that the OpenLineage provider looks for."""

    _ended_run: Run | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Facet and dataset of the run that this task has ended with. None if it has none."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        run = self._ended_run
        if run is None:
            return None
        return OperatorLineage(
            inputs=_inputs(run), outputs=_outputs(run), run_facets={FACET: _facet()(**course(run))}
        )

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """The same for a task that has failed."""
        return self.get_openlineage_facets_on_complete(task_instance)


class ModelLineage:
    """The same for a task that changes which model is promoted."""

    _made: tuple[str, Promotion] | None = None
    """The model URI, and the record."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The checkpoint and the model. None if nothing was promoted."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset

        if self._made is None:
            return None
        model_uri, record = self._made
        checkpoint = f"{record.run}/{layout.manifest(record.step)}"
        return OperatorLineage(
            inputs=[InputDataset(*_dataset(checkpoint))], outputs=[OutputDataset(*_dataset(model_uri))]
        )


def course(run: Run) -> dict[str, Any]:
    """The course of a run in plain JSON, as the facet has it. Times are seconds."""
    state = run.state
    progress = run.progress(state)
    spent = goodput(state, progress, state.ended_at or 0.0)
    return {
        "uri": run.store.uri,
        "engine": state.spec.engine,
        "launcher": state.spec.launcher,
        "outcome": state.outcome,
        "reason": state.reason,
        "step": state.newest_step(progress),
        "restarts": state.restarts_used,
        "goodput": goodput_share(spent),
        "seconds": spent,
        "attempts": [
            {
                "number": attempt.number,
                "workers": attempt.workers,
                "fromStep": attempt.restored_at,
                "lastStep": attempt.last_step,
                "cause": None if attempt.cause is None else str(attempt.cause),
                "failure": None if attempt.failure is None else str(attempt.failure.kind),
            }
            for attempt in state.attempts
        ],
        "metrics": dict(progress.metrics) if progress else {},
    }


def _outputs(run: Run) -> list[Any]:
    from openlineage.client.event_v2 import OutputDataset

    newest = newest_checkpoint(run)
    return [] if newest is None else [OutputDataset(*_dataset(newest["manifest"]))]


def _inputs(run: Run) -> list[Any]:
    """What the run has started from."""
    from openlineage.client.event_v2 import InputDataset

    origin = run.state.origin
    if origin is None:
        return []
    if origin.promotion is not None:
        return [InputDataset(*_dataset(origin.source))]
    if origin.file is None and origin.run is not None and origin.step is not None:
        return [InputDataset(*_dataset(f"{origin.run}/{layout.manifest(origin.step)}"))]
    return [InputDataset(*_dataset(origin.file or origin.source))]


def _dataset(uri: str) -> tuple[str, str]:
    """Namespace and name of what is at a URI."""
    place = urlsplit(uri)
    return (f"{place.scheme}://{place.netloc}", place.path) if place.scheme else ("file", uri)


@cache
def _facet() -> type[Any]:
    import attrs
    from openlineage.client.facet_v2 import RunFacet

    @attrs.define
    class ElasticRunFacet(RunFacet):
        """The course of an elastic run."""

        uri: str
        engine: str
        launcher: str
        outcome: str | None
        reason: str | None
        step: int
        restarts: int
        goodput: float
        seconds: dict[str, float]
        attempts: list[dict[str, Any]]
        metrics: dict[str, float]

    return ElasticRunFacet
