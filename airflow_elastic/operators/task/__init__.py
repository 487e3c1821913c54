"""What operators have in common: the life of a task, its run, its arguments and its result.

- `drives_run`: a task that drives a run of its own. `attach`: finds the run of an earlier try. `foreground`: drives the
  run in the worker, without a triggerer. `naming`: default name and URI.
- `on_run`: a task about a run that somebody else drives.
- `deferral`: hands a trigger over.
- `parameters`: arguments, checked. `result`: what the task returns. `lineage`: OpenLineage.
"""
