"""Begin a session: the first call of a training script."""

from __future__ import annotations

from airflow_elastic.runtime.arguments import seconds, whole_number
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.session import Session


def init(*, total_steps: int | None = None, backend: str | None = None, timeout: float = 1800.0) -> Session:
    """Join the other ranks. Call it once, before anything else of torch.distributed.

    A script that airflow-elastic has started reports, saves and restores. Started by torchrun, or as a plain program,
    it trains the same way, but without checkpoints.

    Args:
        total_steps: planned optimizer steps, for progress. `loader` sets them, too.
        backend: torch's backend for gradients. Default: nccl if there are GPUs, else gloo.
        timeout: seconds after which a blocked collective fails.

    Raises:
        InvalidInput: an argument is not a number, or too large; or there is no such GPU.
    """
    if total_steps is not None:
        total_steps = whole_number("total_steps", total_steps, 0, "elastic.init")
    timeout = seconds("timeout", timeout, "elastic.init")
    return Session(RankEnvironment.read(), total_steps=total_steps, backend=backend, timeout=timeout)


#: The session of this process, if an agent has started it.
_OF_PROCESS: list[Session] = []


def joined() -> Session:
    """The session of this process; else a new one. For a framework that makes several trainers in one process.

    Raises:
        InvalidInput: the run is finished.
    """
    if _OF_PROCESS:
        return _OF_PROCESS[0]
    session = init()
    if session.is_reported:
        _OF_PROCESS.append(session)
    return session
