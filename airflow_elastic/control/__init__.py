"""Carries out what `core` decides. The journal is the truth: a controller may be killed at any line.

- `controller`: the loop. `runs`: creates and finds runs. `jobs`: submits and removes attempts.
- `job_watch`, `poll`: what engine, store and mailbox have to say. `waits`: workers that have not started yet.
- `scaling`: scale steps, and the workers that are ready. `history`: series and conditions for people to look at.
- `reaping`: removes jobs without a run. `observer`: who wants to hear of events.

In: a store and an engine. It must not know Airflow, nor any kind of engine.
"""

from airflow_elastic.control.controller import Controller
from airflow_elastic.control.observer import Observer
from airflow_elastic.control.runs import Run, open_run, start_run

__all__ = ["Controller", "Observer", "Run", "open_run", "start_run"]
