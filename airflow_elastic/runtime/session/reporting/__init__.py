"""What a rank reports to its agent.

- `heartbeat`: steps, metrics and requests, through shared memory. `forward_timer`: how long forward passes take.
- `logging_to_output`: lines of Python's logging, if the script has set up none.
"""
