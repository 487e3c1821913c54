"""How long tests wait."""

from __future__ import annotations

#: So long a test waits for what must come. It measures nothing: only what hangs gets there, on a busy machine too.
PATIENCE_SECONDS = 300.0
