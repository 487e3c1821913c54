"""Starts a rank: `python -u start_rank.py -- train.py ARGS`, `-- -m module ARGS`; `--stand-by` is a spare.

Run by its path, and never imported: so this process's `__main__` is free for the script to take, and no flag or
variable that keeps the current folder off `sys.path` is there for the script, and what it starts, to see.
"""

import sys

LOADED = frozenset(sys.modules)
if not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file
from airflow_elastic.adapters.host.search_path import own_first  # noqa: E402 - nothing is imported before

PATH = own_first()
from airflow_elastic.runtime.rank.run import main  # noqa: E402

main(sys.argv[1:], LOADED, PATH)
