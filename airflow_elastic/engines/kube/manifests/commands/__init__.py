"""From the command of somebody's container to a launcher, a script, and what both are put behind, purely.

In go the words of `command` and `args`, and what is known of the container's variables; out comes a `Launch`, or a
SpecError that says what to write instead. Nothing here knows of manifests, pods or engines.
"""

from airflow_elastic.engines.kube.manifests.commands.found import find_launch
from airflow_elastic.engines.kube.manifests.commands.launches import Launch
from airflow_elastic.engines.kube.manifests.commands.variables import Scope

__all__ = ["Launch", "Scope", "find_launch"]
