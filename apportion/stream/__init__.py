"""Without a batch: who gets the next free slot, and what the trainer takes. ``Stream`` decides; the engine samples."""

from apportion.stream.groups import Sample, stream_groups
from apportion.stream.stream import Stream
from apportion.stream.values import Decision, Ticket, Update

__all__ = ["Decision", "Sample", "Stream", "Ticket", "Update", "stream_groups"]
