"""What another rule or belief would have done with a recorded run.

``replay`` runs allocators and selection rules along a ``RunRecord``. ``expected`` computes what counts would have got,
in expectation.
"""

from apportion.replay.allocating import ReplayedBatch, replay_batches
from apportion.replay.cells import MEASURES, Cells
from apportion.replay.choosing import Choices, choose_along
from apportion.replay.comparison import Comparison
from apportion.replay.limits import Missing
from apportion.replay.population import Population
from apportion.replay.replaying import AllocatorReplay, Replay, SelectorReplay, replay
from apportion.replay.schedule import schedule

__all__ = [
    "MEASURES",
    "AllocatorReplay",
    "Cells",
    "Choices",
    "Comparison",
    "Missing",
    "Population",
    "Replay",
    "ReplayedBatch",
    "SelectorReplay",
    "choose_along",
    "replay",
    "replay_batches",
    "schedule",
]
