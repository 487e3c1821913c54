"""What the memory of past runs says about a run, as plain frozen values. `core.brain` makes them."""
