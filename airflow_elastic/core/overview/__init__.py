"""What a person wants to know of a run at a glance, from its status document and its newest steps.

- `health`: is it well, and why is it so, in one sentence. `eta`: when it will end. `risk`: what would be lost now.
- `pace`: how fast ranks are, against each other. `slow_ranks`: what the slow ones cost.
- `failing_line`: where the script failed. `marks`: which events a chart shows.
- `notices`: events that callbacks are called for.

In: plain values. Out: plain values. It knows no page and no command.
"""
