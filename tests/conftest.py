"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("house", deadline=None)  # machines are noisy, and a slow example is no wrong one
settings.load_profile("house")
