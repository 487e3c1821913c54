"""Indexed Jobs on a real cluster."""

from __future__ import annotations

from tests.support.cluster import ClusterEngine


class TestJob(ClusterEngine):
    engine_name = "job"
