"""A process that has imported torch, and forks itself into node hosts, whose agents and ranks are forks, too.

Run by its path, as `start_rank.py` is, whose part it takes in its forks. What a process finds in its environment,
arguments and descriptors is as it would be; `tests.support.forking` says what is left to real starts.
"""

import sys

LOADED = frozenset(sys.modules)
folder = sys.path.pop(0)
from airflow_elastic.adapters.host.search_path import own_first  # noqa: E402 - nothing is imported before

PATH = own_first()
sys.path.append(folder)
import server  # noqa: E402

sys.path.remove(folder)
from airflow_elastic.runtime.rank.run import main  # noqa: E402

main(server.serve(int(sys.argv[1])), LOADED, PATH)
