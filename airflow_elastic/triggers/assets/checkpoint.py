"""An event for each new checkpoint of a run, or of the runs in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.validation import positive_int
from airflow_elastic.triggers.assets.watcher import Watcher
from airflow_elastic.views.all_runs.below import store_of

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


class ElasticCheckpointEventTrigger(Watcher):
    """Fires for each new checkpoint of a run, or of all runs in a folder: of a task, another DAG or a shell.

        trigger = ElasticCheckpointEventTrigger(runs_uri="my_dag/train", every=5)
        saved = Asset("digits", watchers=[AssetWatcher(name="saved", trigger=trigger)])
        with DAG("evaluate", schedule=saved): ...

    The payload of an event, `extra["payload"]` in the DAG, has `key`, `run_uri`, `step`, `metrics`, `world_size`,
    `samples`, `at`, `manifest` and `data`. The events of a run come in the order of the steps, 5 s apart, with those of
    other runs between. A DAG that is busy gets several events at once.

    Each checkpoint gives one event, also if the triggerer is restarted. If the triggerer is killed in the five seconds
    after an event, that event may come twice, with the same `key`. A checkpoint that the run removes before the next
    look gives none. A run in a folder that saves nothing is looked at less often: after an hour every six minutes.

    Args:
        run_uri: where the run is or will be stored.
        runs_uri: instead of it: a folder or S3 prefix with runs, up to four levels below. A relative one is below the
            run root: `<dag_id>/<task_id>` has the runs of a task that has no `run_uri` of its own.
        every: fire for every N-th new checkpoint of a run. Default: 1.
        existing: also fire for the checkpoints that are there when the trigger begins to watch. Default: False.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        poll_seconds: the time between two looks, seconds. Default: 10.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed, or not one of the two URIs is given.
    """

    def __init__(
        self,
        run_uri: str | None = None,
        existing: bool = False,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 10.0,
        *,
        runs_uri: str | None = None,
        every: int = 1,
    ) -> None:
        place = runs_uri or run_uri
        if place is None or (runs_uri and run_uri):
            allowed = "either `run_uri`, of one run, or `runs_uri`, of a folder of runs"
            raise SpecError(Problem("run_uri", run_uri, allowed))
        if (problem := positive_int.broken(every)) is not None:
            raise SpecError(Problem("every", every, problem))
        given = {
            "run_uri": run_uri,
            "runs_uri": runs_uri,
            "every": every,
            "existing": existing,
            "elastic_conn_id": elastic_conn_id,
            "aws_conn_id": aws_conn_id,
            "poll_seconds": poll_seconds,
        }
        super().__init__(place, given, several=runs_uri is not None, every=every)
        self._runs: dict[str, Store] = {}

    def _open(self) -> Store:
        hook, uri = self._hook(), self._place
        if self._several and not uri.startswith("/") and "://" not in uri:
            uri = f"{hook.run_root.rstrip('/')}/{uri}"
        return hook.open_store(uri)

    def _stores(self, root: Store) -> Mapping[str, Store]:
        if not self._several:
            return super()._stores(root)
        keys = runs_below(root, known=self._runs)
        self._runs = {key: self._runs.get(key) or store_of(root, key) for key in keys}
        return {
            hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:12]: one
            for key, one in self._runs.items()
        }

    def _numbers(self, store: Store) -> list[int]:
        return checkpoints.steps(store)

    def _payload(self, store: Store, number: int) -> dict[str, Any] | None:
        try:
            manifest = checkpoints.read(store, number)
        except CheckpointDamaged as error:
            self.log.warning("%s", f"no event for a checkpoint that cannot be read: {error}")
            return None
        return {
            "key": f"{store.uri}/{manifest.data}",
            "run_uri": store.uri,
            "step": number,
            "metrics": dict(manifest.metrics),
            "world_size": manifest.world_size,
            "samples": manifest.samples,
            "at": manifest.created_at,
            "manifest": f"{store.uri}/{layout.manifest(number)}",
            "data": f"{store.uri}/{manifest.data}",
        }
