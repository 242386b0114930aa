"""A stream whose prompts an engine hands over, from a data loader of its own."""

from collections.abc import Sequence

from apportion.allocators import Allocator
from apportion.scheduler.decisions import RunDecisions
from apportion.scheduler.scheduler import Scheduler
from apportion.scheduler.sources import Offered
from apportion.scheduler.updates import Prompts
from apportion.types import Prompt

NO_PATIENCE = 1e12
"""A patience, in seconds, that never ends: the engine has its own deadlines, and calls ``gave_up``."""


class OfferedScheduler(Scheduler):
    """A ``Scheduler`` for an engine that brings its prompts by ``source.offer``, has deadlines, and counts prompts.

    The engine brings as many prompts as an update has for each update, and ``wanted`` ones beside them.

    Args:
        decisions: as in ``Scheduler``, with a rule that plans each prompt alone, or has a price.
        prompts: the data set, each prompt once. A price is that of all of them.
        due: when an update is due.
        attempts: as in ``Scheduler``.

    Raises ValueError for a rule that compares prompts, and for one that draws prompts of its own.

    >>> from apportion.allocators import Uniform
    >>> stream = OfferedScheduler(Uniform(2), [Prompt("a"), Prompt("b")], Prompts(1))
    >>> stream.decide(free=4, now=0.0).requests
    ()
    >>> stream.source.offer(Prompt("b").id)
    >>> [ticket.prompt.text for ticket in stream.decide(free=4, now=0.0).requests]
    ['b', 'b']
    """

    source: Offered

    def __init__(
        self, decisions: RunDecisions | Allocator, prompts: Sequence[Prompt], due: Prompts, *, attempts: int = 3
    ) -> None:
        super().__init__(decisions, prompts, due, Offered(), attempts=attempts, patience=NO_PATIENCE)

    def wanted(self) -> int:
        """Return how many more prompts to offer than ``due.size`` per update. They count as offered from now on.

        They replace those of updates that had more, and prompts that got no rows.
        """
        able = len({place for place, _ in self.source.waiting if not self._held[place]})
        missing = self.due.size - able - len(self.unfinished()) - self.ready
        wanted = max(0, self.counts["owed"], missing)
        self.counts["owed"] -= wanted
        return wanted

    def restarted(self) -> None:
        """Do the same as ``Scheduler.restarted``."""
        if self._training:  # it will be taken, and counted, again
            self.counts["owed"] -= len(self._training) - self.due.size
        super().restarted()
