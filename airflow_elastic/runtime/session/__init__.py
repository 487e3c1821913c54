"""What a training script holds: `Session`, one rank's view of its run.

In: the calls of the script (`init`, `restore`, `step`, `epochs`, `log`, ...). Out: orders to save, progress for the
agent, an end that the agent understands. `session` puts together what the other modules do: `phases`, `phase_loop` and
`epochs` know how far the script has come, `resume` what it goes on from, `save_schedule` and `save_interval` when it
saves, `heartbeat` what it reports. This room must not know of agents, engines, or the controller.
"""
