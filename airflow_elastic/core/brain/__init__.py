"""The memory of past runs, pure: the facts about a run, and what follows from them for another.

- `kind`: which runs are alike. `facts`: what is kept of one run. `use`: of its workers' use of their machines.
- `proposals`: values for a run, with their evidence. `learnt`: a specification with them.
- `shares`: how runs divide a capacity.

In: states, histories and specifications. Out: frozen dataclasses. It knows no database and no clock.
"""
