"""Rank 0 works while the other rank waits, once for each end in ``ENDS``, first for longer than the group's timeout.

python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.trl.scripts.waiting
"""

import sys
import time
from datetime import timedelta

from accelerate import Accelerator, InitProcessGroupKwargs

from apportion.trl import ranks

TIMEOUT_SECONDS = 3.0
ENDS = {"a result": None, "a ValueError": ValueError("no embedding"), "a KeyError": KeyError("no embedding")}


def work(end):
    if ENDS[end] is not None:
        raise ENDS[end]
    time.sleep(1.5 * TIMEOUT_SECONDS)
    return "embedded"


def main():
    ranks.HEARTBEAT_SECONDS = TIMEOUT_SECONDS / 20
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=TIMEOUT_SECONDS))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[timeout])
    group = ranks.Ranks(accelerator)
    for end in ENDS:
        try:
            outcome = group.run_on_main(lambda end=end: work(end))
        except (ValueError, KeyError, ranks.MainRankError) as error:
            outcome = f"{type(error).__name__}: {error}"
        sys.stdout.write(f"{end} on rank {group.rank}: {outcome}\n")
        sys.stdout.flush()
        assert group.all_gather([group.rank]) == [0, 1]  # the ranks are in step afterwards
    accelerator.end_training()


if __name__ == "__main__":
    main()
