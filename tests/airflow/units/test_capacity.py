"""Waiting for room: what the sensor refuses, what it returns, and one look for all that wait for the same room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_elastic.engines.api import Limit, Room
from airflow_elastic.sensors import ElasticCapacitySensor
from airflow_elastic.spec.errors import EngineError, SpecError
from airflow_elastic.triggers import capacity as module
from airflow_elastic.triggers.capacity import ElasticCapacityTrigger, has_room

SPEC = {"command": ["?"], "workers": {"count": 1}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"limits": ["node"]}, "limits: given .*; allowed: a list of some of nodes, quotas, queue"),
        ({"limits": "nodes"}, "allowed: a list of some of"),
        ({"limits": []}, "allowed: a list of some of"),
        ({"workers": 0}, "workers: given 0"),
        ({"engine": "nonesuch"}, "engine: given 'nonesuch'"),
        ({"poke_interval": 0}, "poke_interval: given 0"),
        ({"timeout": float("nan")}, "timeout: given nan"),
        ({"worker_resources": {"cpu": 2}}, "worker_resources.cpu: given 2"),
    ],
)
def test_bad_arguments_are_refused_while_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ElasticCapacitySensor(task_id="room", **arguments)


def test_what_only_the_engine_knows_is_refused_when_the_task_begins() -> None:
    templated = ElasticCapacitySensor(task_id="room", worker_resources="{{ x }}", deferrable=False)  # type: ignore[arg-type]
    templated.worker_resources = {"cpus": "2"}
    with pytest.raises(
        AirflowFailException, match=r"worker_resources\.cpus: given '2'; allowed: .*cpu, memory"
    ):
        templated.poke({})
    cluster = ElasticCapacitySensor(task_id="room", engine="job")
    with pytest.raises(AirflowFailException, match=r"engine_options\.image: given None"):
        cluster.execute({})


def test_the_room_of_this_machine() -> None:
    def room(**resources: str) -> Any:
        sensor = ElasticCapacitySensor(task_id="room", worker_resources=resources, deferrable=False)
        return sensor.poke({}).xcom_value

    found = room(cpu="0", memory="1Mi")
    assert found["workers"] > 10
    assert [limit["name"] for limit in found["limits"]] == ["memory"]
    assert room(cpu="0", memory="900Ti") is None


def test_an_engine_without_limits_has_room() -> None:
    assert has_room(Room(()), 1000) == {"workers": None, "limits": []}
    assert has_room(Room((Limit("cpu", 3, "of 4"), Limit("memory", 2, "of 2"))), 3) is None


async def test_all_that_wait_for_the_same_room_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EARLIEST_EVENT_SECONDS", 0.0)
    looked = 0

    class Reader:
        def look(self, reads: object = ()) -> Room:
            nonlocal looked
            looked += 1
            if looked == 1:
                raise EngineError("the API server does not answer")
            return Room((Limit("nodes", looked, "of 3 nodes"),))

    monkeypatch.setattr(ElasticCapacityTrigger, "_open", lambda self: Reader())

    async def wait(workers: int) -> dict[str, Any]:
        trigger = ElasticCapacityTrigger(SPEC, workers, poll_seconds=0.01)
        return dict((await anext(trigger.run())).payload)

    payloads = await asyncio.gather(*(wait(2 + number % 2) for number in range(100)))
    assert [payload["reached"]["workers"] for payload in payloads] == [2, 3] * 50
    assert looked == 3
