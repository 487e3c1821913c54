"""A plan for a run, pure: when it is done with each number of workers, for how much, and what holds it up.

- `known`: what its own past and past runs say about times. `duration`: how long the rest takes.
- `parts`: where the time goes. `plan`: all of these together, and what would change them. `words`: a plan in lines.

In: a specification and facts. Out: frozen dataclasses. It says what is unknown instead of guessing.
"""
