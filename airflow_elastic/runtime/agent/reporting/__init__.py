"""Reports from an agent, and orders to it.

The agent sends progress, stacks, logs, and evidence of how ranks ended. It receives orders. `controller_lease` checks
whether a controller still drives the run. These modules decide nothing about a run.
"""
