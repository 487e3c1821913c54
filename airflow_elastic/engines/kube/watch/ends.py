"""How workers ended whose pods are gone: the last status of a pod counts if its owner says no more.

The pod of a finished worker may vanish because a sidecar keeps it on a node that is removed. A preempted pod vanishes
together with the condition that says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.engines.kube.watch.disruption import disruption_of
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDED = (WorkerPhase.SUCCEEDED, WorkerPhase.FAILED, WorkerPhase.LOST)


class Ends:
    """The last status of each worker of one job, by name."""

    def __init__(self) -> None:
        self._last: dict[str, WorkerStatus] = {}

    def __call__(self, status: JobStatus, pods: Mapping[str, Mapping[str, Any]]) -> JobStatus:
        """The same with how workers ended whose pods are gone, if the job only says that they are lost.

        Args:
            status: of the job now.
            pods: its (slim) pods, by the names of their workers.
        """
        workers = tuple(self._known(one, pods.get(one.name)) for one in status.workers)
        self._last = {one.name: self._last[one.name] for one in workers if one.name in self._last}
        return replace(status, workers=workers)

    def _known(self, worker: WorkerStatus, pod: Mapping[str, Any] | None) -> WorkerStatus:
        if pod is None:
            is_lost = worker.phase is WorkerPhase.LOST and not worker.preempted
            return self._last.get(worker.name, worker) if is_lost else worker
        self._last.pop(worker.name, None)
        if worker.phase in _ENDED:
            self._last[worker.name] = worker
        elif (why := disruption_of(dict(pod))) is not None:
            self._last[worker.name] = replace(
                worker, phase=WorkerPhase.LOST, waiting=None, reason=why.reason, preempted=why.preempted
            )
        return worker
