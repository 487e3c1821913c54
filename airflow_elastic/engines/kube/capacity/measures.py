"""The part of a cluster engine that measures room and capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_elastic.engines.api import ROOM_LIMITS, Job, Room
from airflow_elastic.engines.kube.capacity.of_job import job_capacity
from airflow_elastic.engines.kube.capacity.room import cluster_room
from airflow_elastic.engines.kube.options import KubeOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_elastic.adapters.kube import Access
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Capacity


class Measures:
    """`MeasuresRoom` and `MeasuresCapacity`, for any kind of job."""

    kind: ClassVar[Kind]

    def _reach(self, options: KubeOptions) -> Access:
        raise NotImplementedError

    async def room(self, spec: RunSpec, limits: Collection[str] = ROOM_LIMITS) -> Room:
        """By what pods request, and by the limits of the namespace and the queue."""
        options = options_of(spec, self.kind.options)
        return await cluster_room(self.kind, self._reach(options), options, spec, limits)

    async def capacity(self, job: Job) -> Capacity:
        """The same for further workers of a job, and who waits for room of its workers.

        All runs of a connection read the cluster together: at most once an interval of their policies.
        """
        options = options_of(job.spec, self.kind.options)
        return await job_capacity(self.kind, self._reach(options), options, job)
