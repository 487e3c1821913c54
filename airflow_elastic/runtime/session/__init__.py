"""What a training script holds: `Session`, one rank's view of its run.

In: the calls of the script (`restore`, `step`, `report`, `epochs`, `finish`). Out: saves, and progress for the agent.

- `begin`: makes it. `session`: the class. `phases`, `phase_loop`, `epochs`: how far the script has come.
- `resume`: the state it goes on from. `save_schedule`, `save_interval`: when it saves.
- `reporting`: what it reports to its agent.

These modules must not know of agents, engines, or the controller.
"""
