"""Replays traces of clusters in virtual time, through the same state machine and autoscaler as real runs.

In: a trace (`traces`) and a policy (`policies`). Out: how long runs wait and take, and which GPU time is lost
(`metrics`). Beside it stands the bound that no schedule can beat (`oracle`). It knows nothing of engines, stores and
clocks.
"""
