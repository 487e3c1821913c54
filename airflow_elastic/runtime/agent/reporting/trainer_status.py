"""Posts the run's progress to the status of its TrainJob, if Kubeflow Trainer gives its pods a URL for that.

Trainer does so behind its feature gate `TrainJobStatus` (alpha): three variables name the URL, the certificate and the
token. The status is only shown to people: training never waits for it, nor fails because of it.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_elastic.spec.status import Progress

log = logging.getLogger(__name__)

_URL, _CA, _TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{part}" for part in ("URL", "CA_CERT", "TOKEN"))

#: Time between two posts, the longest time for an answer, and the pause after a failure.
EVERY_SECONDS, _ANSWER_SECONDS, _PAUSE_SECONDS = 10.0, 2.0, 60.0

#: What Trainer accepts at most: the number of metrics, and the length of a name or a value.
_METRICS, _LETTERS = 256, 64

Telling = Callable[[bool], Progress | None]


def also_to_trainer(tell: Telling, env: Mapping[str, str]) -> Telling:
    """`tell`; if the environment names Trainer's server, it also posts the progress there."""
    if not env.get(_URL):
        return tell
    return _Both(tell, TrainerStatus(env[_URL], env.get(_CA, ""), env.get(_TOKEN, "")))


@dataclass
class _Both:
    tell: Telling
    status: TrainerStatus

    def __call__(self, last: bool) -> Progress | None:
        progress = self.tell(last)
        if progress is not None:
            self.status.post(progress, last=last)
        return progress


@dataclass
class TrainerStatus:
    """Posts the progress of one attempt.

    Attributes:
        url: URL of this TrainJob's status on the server.
        ca: path of the certificate that verifies the server; "" for those of the system.
        token: path of the pod's token, which is renewed there.
    """

    url: str
    ca: str
    token: str
    _not_before: float = -math.inf
    _failed: bool = False
    _first: tuple[int, float] | None = field(default=None)

    def post(self, progress: Progress, *, last: bool = False) -> None:
        """Post the progress, unless it is too early. Raises nothing: a failure is logged, once until it succeeds."""
        self._first = self._first or (progress.step, progress.at)
        now = time.monotonic()
        if now < self._not_before and not (last and not self._failed):
            return
        self._not_before = now + EVERY_SECONDS
        try:
            self._send(json.dumps({"trainerStatus": status_of(progress, self._first)}))
            self._failed = False
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._failed:
                log.warning("the TrainJob's status does not show progress for now: %s", error)
            self._failed = True
            self._not_before = now + _PAUSE_SECONDS

    def _send(self, body: str) -> None:
        place = urlsplit(self.url)
        if place.scheme != "https":
            raise ValueError(f"{self.url} is not https, so the token is not sent there")
        trust = ssl.create_default_context(cafile=self.ca or None)
        token = Path(self.token).read_text().strip()
        connection = http.client.HTTPSConnection(place.netloc, timeout=_ANSWER_SECONDS, context=trust)
        try:
            path = place.path + (f"?{place.query}" if place.query else "")
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", path or "/", body, headers)
            answer = connection.getresponse()
            said = answer.read(500)
        finally:
            connection.close()
        if answer.status >= 300:
            raise ValueError(f"HTTP {answer.status}: {said.decode(errors='replace').strip()}")


def status_of(progress: Progress, first: tuple[int, float]) -> dict[str, Any]:
    """The document that Trainer calls `trainerStatus`.

    Args:
        progress: the newest progress.
        first: step and time of the first progress, to compute the speed.
    """
    at = datetime.fromtimestamp(progress.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    status: dict[str, Any] = {"lastUpdatedTime": at, "metrics": _metrics(progress)}
    total, (step, since) = progress.total_steps, first
    if total:
        status["progressPercentage"] = min(100, max(0, 100 * progress.step // total))
        done, seconds = progress.step - step, progress.at - since
        if done > 0 and seconds > 0:
            status["estimatedRemainingSeconds"] = max(0, round((total - progress.step) * seconds / done))
    return status


def _metrics(progress: Progress) -> list[dict[str, str]]:
    values: dict[str, float | None] = {
        "step": progress.step,
        "loss": progress.loss,
        "world_size": progress.world_size,
        "samples_per_second": progress.samples_per_second,
        **progress.metrics,
    }
    known = {name: f"{value:.10g}" for name, value in values.items() if value is not None}
    good = [(name, value) for name, value in known.items() if 0 < len(name) <= _LETTERS]
    return [{"name": name, "value": value} for name, value in good[:_METRICS]]
