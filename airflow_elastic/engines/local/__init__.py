"""The local engine: every worker is a node of its own on this machine, and outlives the process that started it."""

from airflow_elastic.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
