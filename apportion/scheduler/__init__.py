"""What is sampled next, and what the trainer takes. ``Scheduler`` decides; the engine samples."""

from apportion.scheduler.decisions import RunDecisions, TrainerAllocation
from apportion.scheduler.groups import Sample, stream_groups
from apportion.scheduler.offered import OfferedScheduler
from apportion.scheduler.scheduler import Scheduler
from apportion.scheduler.sources import Offered, Selected
from apportion.scheduler.updates import Prompts, Rows
from apportion.scheduler.values import SlotDecision, Ticket, Update

__all__ = [
    "Offered",
    "OfferedScheduler",
    "Prompts",
    "Rows",
    "RunDecisions",
    "Sample",
    "Scheduler",
    "Selected",
    "SlotDecision",
    "Ticket",
    "TrainerAllocation",
    "Update",
    "stream_groups",
]
