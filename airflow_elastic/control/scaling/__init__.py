"""How many workers a live attempt trains with: steps that are asked for, and steps that its policy decides.

In: the engine, the run's state, what workers report. Out: events for the journal. It starts and ends no attempt.
"""
