"""Deleting pods of a training on a real cluster, and finding out where the time goes until its next step."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.engines.kube.watch import pod_status
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.bench.support.kube_recovery import Loss, Moment, Witness, journaled, kind_of, plain_job
from tests.bench.support.recovery import POLL_SECONDS, SCRIPTS, WORLD, Moments
from tests.cluster.kinds.test_training import training
from tests.support.driving import Driven, driving
from tests.support.kubernetes.cluster import pods_of
from tests.support.machine.patience import until_async

#: A standby worker is ready when it has imported torch, which nobody can see.
IMPORT_SECONDS = 8.0


class Training:
    """scripts/recover.py on a cluster: it trains without end while its pods are deleted."""

    def __init__(
        self, engine: str, folder: Path, options: dict[str, Any], access: Access, *, standby: int = 0
    ) -> None:
        self.options, self.marks, self.uri = options, folder / "marks", folder / engine
        self.marks.mkdir(parents=True)
        self._access, self._kind = access, kind_of(engine)
        spec = training(engine, options, checkpoint=CheckpointPolicy(every_seconds=1.0, keep_last=2))
        self.spec = type(spec).from_dict(
            {
                **spec.to_dict(),
                "command": [str(SCRIPTS / "recover.py")],
                "env": {**spec.env, "BENCH_MARKS": str(self.marks), "OMP_NUM_THREADS": "1"},
                "restart": {"backoff_limit": 10_000},
                "workers": {**spec.to_dict()["workers"], "standby": standby},
            }
        )

    async def losses(self, client: Client, times: int) -> list[Loss]:
        """Delete a pod each time the training is back at work."""
        moments, done = Moments(), list[Loss]()
        async with (
            Witness(self._access, self.options["namespace"], self._kind) as witness,
            driving(self.uri, self.spec, poll_seconds=POLL_SECONDS, observer=moments) as driven,
        ):
            await self._up(driven, 1)
            for number in range(1, times + 1):
                await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
                await asyncio.sleep(3.0)
                await driven.until(lambda: self._stands_by(driven), "standby workers")
                await asyncio.sleep(IMPORT_SECONDS if self.spec.workers.standby else 0.0)
                pod = await self._member(driven, client)
                loss = Loss(time.time())
                await client.delete(PODS, self.options["namespace"], pod, grace_seconds=0)
                loss.moments |= await self._up(driven, number + 1)
                loss.moments |= journaled(moments, number)
                loss.moments |= self._seen(driven, witness, moments, number + 1)
                done.append(loss)
        return done

    def _stands_by(self, driven: Driven) -> bool:
        placement: Any = driven.run.status()["placement"]
        ready = [one for one in placement if one["standby"] and one["phase"] == "running"]
        return len(ready) >= self.spec.workers.standby

    async def _member(self, driven: Driven, client: Client) -> str:
        """The pod of the last worker that trains."""
        progress = driven.run.progress(driven.state)
        assert progress is not None
        last = max(progress.ranks, key=lambda one: one.rank).worker
        pods = await pods_of(driven, client, self.options["namespace"])
        kind = find_engine(self.spec.engine).kind  # type: ignore[attr-defined]
        (name,) = (
            pod["metadata"]["name"] for pod in pods if f"node-{kind.index(pod_status.slim(pod))}" == last
        )
        return str(name)

    async def _up(self, driven: Driven, attempt: int) -> dict[str, float]:
        """Wait until an attempt steps; when its slowest rank came how far."""
        pattern = f"{attempt}-*.json"
        await driven.until(
            lambda: len(list(self.marks.glob(pattern))) == WORLD, f"the first step of attempt {attempt}"
        )
        await driven.until(lambda: driven.step > 0, "the first report")
        ranks = [json.loads(path.read_text()) for path in self.marks.glob(pattern)]
        return {what: max(rank[what] for rank in ranks) for what in ranks[0]}

    def _seen(self, driven: Driven, witness: Witness, moments: Moments, attempt: int) -> dict[str, float]:
        lost, now = (Moment(driven, witness, moments, number) for number in (attempt - 1, attempt))
        progress = driven.run.progress(driven.state)
        assert progress is not None
        made = now.made
        assert made is not None
        stages = () if self.spec.workers.standby else ("scheduled", "running")
        whole = {what: max(witness.pods(now.name, what).values()) for what in stages}
        before = moments.at.get((attempt - 2, "WorkersEnded"), 0.0)
        return {
            "made": made,
            "removed": min(at for at in witness.pods(lost.name, "gone").values() if at > before),
            "met": progress.stretches[-1].started_at,
            **whole,
        }

    async def floors(self, client: Client, times: int, *launcher: str) -> list[float]:
        """A plain Job of as many pods that import what the script imports, and load: seconds until all have."""
        namespace, found = self.options["namespace"], []
        words = [
            self.options["python"],
            *launcher,
            SCRIPTS / "floor.py",
            self.uri,
            "$JOB_COMPLETION_INDEX",
            WORLD,
        ]
        script = f"exec {' '.join(map(str, words))}"
        for name in (f"{'torchrun' if launcher else 'floor'}-{number}" for number in range(times)):
            body = plain_job(name, self.options, "sh", "-c", script, pods=WORLD)
            pod = pod_like(self.spec.env, self.options, body["spec"]["template"]["spec"])
            body["spec"]["template"]["spec"] = pod
            began = time.time()
            await client.create(JOBS, namespace, body)

            async def done(name: str = name) -> bool:
                job = await client.get(JOBS, namespace, name)
                return bool(job.get("status", {}).get("succeeded", 0) == WORLD)

            await until_async(done, f"{name} to end")
            pods, _ = await client.list(PODS, namespace, labels=f"{JOB_LABEL}={name}")
            logs = [await client.log(namespace, one["metadata"]["name"], "main", tail=1) for one in pods]
            found.append(max(map(float, logs)) - began)
            await client.delete(JOBS, namespace, name)
        return found


def pod_like(env: Any, options: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec with the volumes, the environment and the memory that workers have."""
    volumes = options.get("volumes", ())
    container = pod["containers"][0] | {
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"limits": {"memory": "3Gi"}},
        "volumeMounts": [{"name": f"v{i}", "mountPath": one["mount_path"]} for i, one in enumerate(volumes)],
    }
    paths = [{"name": f"v{i}", "hostPath": {"path": one["host_path"]}} for i, one in enumerate(volumes)]
    return {**pod, "containers": [container], "volumes": paths}
