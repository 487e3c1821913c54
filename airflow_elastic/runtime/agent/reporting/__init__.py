"""Reports of an agent, and orders to it.

Up go progress, stacks, logs, and evidence of how ranks ended. Down come orders. `controller_lease` knows whether a
controller still drives the run. This room decides nothing about a run.
"""
