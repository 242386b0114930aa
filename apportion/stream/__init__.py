"""Without a batch: who gets the next free slot, and what the trainer takes. ``Stream`` decides; the engine samples."""

from apportion.stream.groups import Sample, stream_groups
from apportion.stream.offered import OfferedStream
from apportion.stream.sources import Offered, Selected
from apportion.stream.stream import Stream
from apportion.stream.updates import Prompts, Rows
from apportion.stream.values import SlotDecision, Ticket, Update

__all__ = [
    "Offered",
    "OfferedStream",
    "Prompts",
    "Rows",
    "Sample",
    "Selected",
    "SlotDecision",
    "Stream",
    "Ticket",
    "Update",
    "stream_groups",
]
