"""The pure core: what happened goes in, what to do comes out. No I/O, no clock, no randomness, no logging."""
