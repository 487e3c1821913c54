"""Commands about a machine or a cluster, without a run: `doctor`, `render`, `reap`."""
