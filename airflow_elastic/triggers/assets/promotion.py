"""An event for each new promotion of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import promotions
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.triggers.assets.watcher import Watcher

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


class ElasticPromotionEventTrigger(Watcher):
    """Fires for each new promotion of a model URI, and for rollbacks: of a task or a shell.

        trigger = ElasticPromotionEventTrigger(model_uri="s3://models/digits")
        digits = Asset("digits", watchers=[AssetWatcher(name="promoted", trigger=trigger)])
        with DAG("deploy", schedule=digits): ...

    The payload of an event, `extra["payload"]` in the DAG, is the record with `key` and `model_uri`. Each promotion
    gives one event, in their order, also if the triggerer is restarted. If the triggerer is killed in the five seconds
    after an event, that event may come twice, with the same `key`.

    Args:
        model_uri: where promoted models are or will be kept.
        existing: also fire for the promotions that are there when the trigger begins to watch. Default: False.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        poll_seconds: the time between two looks, seconds. Default: 10.
    """

    def __init__(
        self,
        model_uri: str,
        existing: bool = False,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 10.0,
    ) -> None:
        super().__init__(
            model_uri,
            {
                "model_uri": model_uri,
                "existing": existing,
                "elastic_conn_id": elastic_conn_id,
                "aws_conn_id": aws_conn_id,
                "poll_seconds": poll_seconds,
            },
        )

    def _numbers(self, store: Store) -> list[int]:
        return promotions.numbers(store)

    def _payload(self, store: Store, number: int) -> dict[str, Any] | None:
        try:
            record = promotions.read(store, number)
        except InvalidInput:  # somebody has removed it
            return None
        plain: dict[str, Any] = encode(record)
        return {"key": f"{store.uri}#{number}", "model_uri": store.uri, **plain}
