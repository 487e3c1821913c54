"""The autoscaler, pure: what a run and its surroundings look like → how many workers it should have, and why.

In: `ScalingPolicy`, `Workers`, `Observation` (all from `spec`). Out: a `Decision`. It has no clock, I/O or chance, and
knows neither engines nor the journal: the controller asks at intervals, and journals the decisions.
"""
