"""Where workers run. An engine is a class with the protocol of `api`: submit, watch, delete, and what it can do beside.

`local` starts processes of this machine, `kube` makes objects of a cluster. An engine holds no policy.
"""

from airflow_elastic.engines.api import Capabilities, Engine, Finding, Job, engine_names, find_engine

__all__ = ["Capabilities", "Engine", "Finding", "Job", "engine_names", "find_engine"]
