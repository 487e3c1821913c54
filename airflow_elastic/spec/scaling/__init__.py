"""Scaling: planned steps, the policy by which a run scales itself, its observations, and its decisions.

In: plain values of a specification. Out: frozen dataclasses. `core.scaling` decides with them; nothing here decides.
"""
