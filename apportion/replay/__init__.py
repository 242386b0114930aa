"""What another rule or belief would have done with a recorded run.

``replay`` runs allocators and selection rules along a ``RunRecord``.
"""

from apportion.replay.allocating import ReplayedBatch, replay_batches
from apportion.replay.cells import MEASURES, Cells
from apportion.replay.choosing import Choices, choose_along
from apportion.replay.foresight import batches_of
from apportion.replay.intervals import Spanned
from apportion.replay.limits import Missing
from apportion.replay.population import OutcomePopulation
from apportion.replay.replaying import replay
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay

__all__ = [
    "MEASURES",
    "AllocatorReplay",
    "Cells",
    "Choices",
    "Missing",
    "OutcomePopulation",
    "Replay",
    "ReplayedBatch",
    "SelectorReplay",
    "Spanned",
    "batches_of",
    "choose_along",
    "replay",
    "replay_batches",
]
