"""For all tests."""

from hypothesis import settings

# A busy machine is no bug: no example has a time limit. What fails is printed so that it can be run again.
settings.register_profile("ours", deadline=None, print_blob=True)
settings.load_profile("ours")
