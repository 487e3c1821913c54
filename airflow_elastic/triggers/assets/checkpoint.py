"""An event for each new checkpoint of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec import layout
from airflow_elastic.triggers.assets.watcher import Watcher

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


class ElasticCheckpointEventTrigger(Watcher):
    """Fires for each new checkpoint of a run: of a task, another DAG or a shell.

        trigger = ElasticCheckpointEventTrigger(run_uri="s3://training/digits")
        saved = Asset("digits", watchers=[AssetWatcher(name="saved", trigger=trigger)])
        with DAG("evaluate", schedule=saved): ...

    The payload of an event, `extra["payload"]` in the DAG, has `key`, `run_uri`, `step`, `metrics`, `world_size`,
    `samples`, `at`, `manifest` and `data`. Events come in the order of the steps. Each checkpoint gives one event, also
    if the triggerer is restarted. If the triggerer is killed in the five seconds after an event, that event may come
    twice, with the same `key`. A checkpoint that the run removes before the next look gives none.

    Args:
        run_uri: where the run is or will be stored.
        existing: also fire for the checkpoints that are there when the trigger begins to watch. Default: False.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        poll_seconds: the time between two looks at the run, seconds. Default: 10.
    """

    def __init__(
        self,
        run_uri: str,
        existing: bool = False,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 10.0,
    ) -> None:
        super().__init__(("run_uri", run_uri), existing, elastic_conn_id, aws_conn_id, poll_seconds)

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
