"""Scaling: planned steps, the policy by which a run scales itself, what the policy sees, and what it decides.

In: plain values of a specification. Out: frozen dataclasses. `core.scaling` decides with them; nothing here decides.
"""
