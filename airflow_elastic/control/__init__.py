"""Carries out what `core` decides. The journal is the truth: a controller may be killed at any line.

- `controller`: the loop. `runs`: creates and finds runs. `jobs`: submits and removes attempts.
- `watching`, `look`: what engine, store and mailbox have to say. `scaling`: scale steps. `waits`: workers not started
  yet.
- `reaping`: removes jobs without a run. `observer`: who wants to hear of events.

In: a store and an engine. It must not know Airflow, nor any kind of engine.
"""

from airflow_elastic.control.controller import Controller
from airflow_elastic.control.observer import Observer
from airflow_elastic.control.runs import Run, open_run, start_run

__all__ = ["Controller", "Observer", "Run", "open_run", "start_run"]
