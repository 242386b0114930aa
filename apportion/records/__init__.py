"""Records of rollouts: write them while training, read them back, replay them.

``write_step`` writes the batch of a step to one Parquet file of the rollout log. ``read_log`` returns the log as a
table, and ``read_streams`` the rollouts of each prompt, which ``Recorded`` gives out again as a sampler.
``open_run`` returns any recorded run as a ``RunRecord``, which diagnosis, replay and report read. ``write_record``
writes a ``RunRecord`` as a rollout log.
"""

from apportion.records.following import Follower, LogNews, follow
from apportion.records.log_folder import check_new_folder, prepare_log, remove_steps_after, resume_log, start_log
from apportion.records.log_reading import read_log, read_streams
from apportion.records.opening import open_run
from apportion.records.reading import record_of_log, record_of_visits
from apportion.records.record_writing import write_record
from apportion.records.recorded import Recorded
from apportion.records.rollout_log import COLUMNS, ROLLOUTS, VERSION, LogText, RecordError
from apportion.records.run_record import RunRecord
from apportion.records.scalars import Scalars, ScalarsOnlyError, scalars_at
from apportion.records.step_writing import LoggedStep, check_log_text, write_step, write_steps

__all__ = [
    "COLUMNS",
    "ROLLOUTS",
    "VERSION",
    "Follower",
    "LogNews",
    "LogText",
    "LoggedStep",
    "RecordError",
    "Recorded",
    "RunRecord",
    "Scalars",
    "ScalarsOnlyError",
    "check_log_text",
    "check_new_folder",
    "follow",
    "open_run",
    "prepare_log",
    "read_log",
    "read_streams",
    "record_of_log",
    "record_of_visits",
    "remove_steps_after",
    "resume_log",
    "scalars_at",
    "start_log",
    "write_record",
    "write_step",
    "write_steps",
]
