"""The folder of the weights lasts as long as its process."""

import os
import signal
import subprocess
import sys

from apportion.engines.weights import weights_folder

HOLDS = """
from apportion.engines.weights import weights_folder
with weights_folder(0) as folder:
    print(folder, flush=True)
    input()
"""


def test_a_killed_process_leaves_its_weights_to_the_next_run_to_remove_and_a_living_one_keeps_them():
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=-1, stdout=-1, text=True) as other:
        left = other.stdout.readline().strip()
        with weights_folder(0) as own:
            assert own.is_dir() and os.path.isdir(left)
        assert not own.exists()
        other.send_signal(signal.SIGKILL)
        other.wait(10)
    with weights_folder(0):
        assert not os.path.exists(left)
