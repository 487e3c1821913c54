"""What an agent reports, and what it is told.

Up: progress, stacks, logs, and evidence of how ranks ended. Down: orders, and whether a controller still holds its
lease on the run. This room decides nothing about a run.
"""
