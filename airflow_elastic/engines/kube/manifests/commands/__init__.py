"""Finds the launcher, the script, and the commands before them in the command of a user's container, purely.

In: the words of `command` and `args`, and the known variables of the container. Out: a `Launch`, or a SpecError that
says what to write instead. Nothing here knows of manifests, pods or engines.
"""

from airflow_elastic.engines.kube.manifests.commands.find_launch import find_launch
from airflow_elastic.engines.kube.manifests.commands.launches import Launch
from airflow_elastic.engines.kube.manifests.commands.variables import Scope

__all__ = ["Launch", "Scope", "find_launch"]
