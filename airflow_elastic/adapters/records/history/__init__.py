"""The history of a run in storage.

Two sources write one: lead agents (`training`) and controllers. Each has archives and recent parts:

```text
history/training/recent-a0002-<writer>   what a writer has added since its last fold; it replaces it as a whole
history/training/archive-00000017        everything before; created exclusively, and the newest counts
```

A writer that folds reads the newest archive and recent parts, and creates the next archive. Only then does it shorten
its own part and remove others. An archive says until when it includes a writer. So a death between any two of these
operations neither loses a bucket nor counts one twice.
"""

from airflow_elastic.adapters.records.history.read import CONTROLLER, TRAINING, read_history
from airflow_elastic.adapters.records.history.write import HistoryWriter

__all__ = ["CONTROLLER", "TRAINING", "HistoryWriter", "read_history"]
