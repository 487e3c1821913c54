"""Starts a rank: `python -u start_rank.py -- train.py ARGS`, `-- -m module ARGS`; `--fork-server`: many, by forks.

With `--node-host` it also forks the agents of the engine `local`; with `--pod` it is an agent itself. It is run by its
path, and never imported. So the script can take over this process's `__main__`. And it needs no flag or variable that
keeps the current folder off `sys.path`: the script and its child processes would see it.
"""

import sys

LOADED = frozenset(sys.modules)
if not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file
from airflow_elastic.adapters.host.search_path import own_first  # noqa: E402 - the first import

PATH = own_first()
from airflow_elastic.runtime.rank.run import main  # noqa: E402

main(sys.argv[1:], LOADED, PATH)
