"""Where workers run. One module an engine; `engines.api` is the seam."""

from airflow_elastic.engines.api import Capabilities, Engine, Finding, Job, engine_names, find_engine

__all__ = ["Capabilities", "Engine", "Finding", "Job", "engine_names", "find_engine"]
