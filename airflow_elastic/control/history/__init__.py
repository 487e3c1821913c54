"""The controller's part of a run's history: what an observer of the run sees goes to storage.

Comes in: what a controller reports to its observer. Goes out: series of goodput and workers, and what lasted for a
while. It decides nothing, and its failures do not delay the run.
"""

from airflow_elastic.control.history.observer import HistoryObserver

__all__ = ["HistoryObserver"]
