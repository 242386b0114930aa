"""Records of rollouts: write them while training, read them back, replay them.

``write_step`` writes the batch of a step to one Parquet file of the rollout log. ``read_log`` returns the log as a
table, and ``read_streams`` the rollouts of each prompt, which ``Recorded`` gives out again as a sampler.
"""

from apportion.records.recorded import Recorded
from apportion.records.rollout_log import (
    COLUMNS,
    VERSION,
    RecordError,
    prepare_log,
    read_log,
    read_streams,
    remove_steps_after,
    resume_log,
    start_log,
    write_step,
)

__all__ = [
    "COLUMNS",
    "VERSION",
    "RecordError",
    "Recorded",
    "prepare_log",
    "read_log",
    "read_streams",
    "remove_steps_after",
    "resume_log",
    "start_log",
    "write_step",
]
