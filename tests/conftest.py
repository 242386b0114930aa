"""Settings of all tests."""

import signal

from hypothesis import settings

settings.register_profile("house", deadline=None)  # machines are noisy, and a slow example is no wrong one
settings.load_profile("house")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup: the processes that tests interrupt inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
