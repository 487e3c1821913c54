"""What happens to the training, from outside: a worker is killed, and another one is asked for.

Neither the training script nor the DAG knows of it. The worker dies of SIGKILL, as it would with its machine; the
request is made by the command that a person would type.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.engines import Job
from airflow_elastic.engines.local.engine import job_files

if TYPE_CHECKING:
    from airflow_elastic.control.runs import Run

VICTIM = 1
WORKERS_WANTED = 3
CLI = Path(sys.executable).parent / "airflow-elastic"

#: Which part of the training is done when it happens.
KILL_AT, SCALE_AT = 0.25, 0.55

#: How many steps beyond the newest checkpoint the kill may come: those are lost, and done again.
LOST_STEPS = range(5, 16)


class Faults:
    """Waits for the right moments, and acts.

    Attributes:
        killed: process id of the agent that was killed; None as long as it was not.
        scale_code: exit code of the command that asks for workers; None as long as it has not ended.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.killed: int | None = None
        self.scale_code: int | None = None
        self._scaling: subprocess.Popen[str] | None = None

    def look(self, run: Run, status: Mapping[str, Any]) -> None:
        """Do what is due. Called again and again, with the newest status."""
        done = status["step"] / status["total_steps"] if status["total_steps"] else 0.0
        if self.killed is None:
            if done >= KILL_AT and _loses_steps(status, hurry=done >= KILL_AT + 0.15):
                self._kill(run)
        elif self._scaling is None:
            if done >= SCALE_AT and status["attempts"][-1]["number"] > 1 and _at_work(status):
                self._scale(status["run"]["uri"])
        elif self.scale_code is None and self._scaling.poll() is not None:
            self.scale_code = self._scaling.returncode
            said = self._scaling.communicate()[0].strip()
            if self.scale_code:
                self._say(f"it ended with {self.scale_code}: {said}")

    def close(self) -> None:
        """End a command that is still at work."""
        if self._scaling is not None and self._scaling.poll() is None:
            self._scaling.kill()
            self._scaling.wait()

    def _kill(self, run: Run) -> None:
        state = run.state
        job = Job(run.store.uri, state.spec, state.attempt.number, state.attempt.workers)
        agent = job_files(job).agent(VICTIM)
        if agent is not None and agent.alive:
            self._say(f"$ kill -9 {agent.pid}    (the agent of worker {VICTIM})")
            agent.send(signal.SIGKILL)
            self.killed = agent.pid

    def _scale(self, uri: str) -> None:
        command = [CLI.name, "scale", uri, str(WORKERS_WANTED)]
        self._say(f"$ {shlex.join(command)}")
        self._scaling = subprocess.Popen(
            [str(CLI), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _at_work(status: Mapping[str, Any]) -> bool:
    """Whether the newest attempt is stepping."""
    stretches = status["attempts"][-1]["stretches"]
    return bool(stretches) and stretches[-1].get("first_step_at") is not None


def _loses_steps(status: Mapping[str, Any], *, hurry: bool) -> bool:
    newest = status["checkpoints"]["newest"]
    return newest is not None and (hurry or status["step"] - newest["step"] in LOST_STEPS)
