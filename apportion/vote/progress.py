"""The running totals of a vote, and how a person sees them: a bar on a terminal, else a line in the log."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from rich.console import Console

from apportion.runs.progress import Bars
from apportion.vote.ballot import Ballot
from apportion.vote.sample import Sample

REDRAW_EVERY_SECONDS = 0.25

logger = logging.getLogger("apportion.vote")


@dataclass
class Tally:
    """Running totals: samples and ``tokens`` of this run, and finished questions of earlier runs too.

    ``unparsed`` are those of the ``arrived`` samples that hold no answer, ``truncated`` those that were cut off, and
    ``cut`` those that are both.
    """

    questions: int
    max_samples: int
    finished: int = 0
    finished_samples: int = 0
    samples: int = 0
    arrived: int = 0
    unparsed: int = 0
    truncated: int = 0
    cut: int = 0
    tokens: int = 0

    def sample(self, sample: Sample) -> None:
        """Count one sample that arrived or failed."""
        self.samples += 1
        self.arrived += sample.arrived
        self.unparsed += sample.arrived and sample.answer is None
        self.truncated += sample.truncated
        self.cut += sample.arrived and sample.truncated and sample.answer is None
        self.tokens += sample.tokens or 0

    def finish(self, ballot: Ballot) -> None:
        """Count one finished question."""
        self.finished += 1
        self.finished_samples += ballot.samples

    def line(self) -> str:
        """Return the totals in words.

        >>> Tally(questions=8, max_samples=64, finished=2, finished_samples=32, samples=40, tokens=9000).line()
        '2 of 8 questions, 40 samples, 9,000 tokens, 75% of the samples saved'
        """
        saved = "".join(
            f", {count} {name}"
            for name, count in (("without an answer", self.unparsed), ("cut off", self.truncated))
            if count
        )
        if self.finished:
            share = 1 - self.finished_samples / (self.max_samples * self.finished)
            saved += f", {share:.0%} of the samples saved"
        return f"{self.finished} of {self.questions} questions, {self.samples} samples, {self.tokens:,} tokens{saved}"


@asynccontextmanager
async def show_progress(tally: Tally) -> AsyncIterator[None]:
    """Show ``tally`` until the block ends: on stderr if that is a terminal, else in the log."""
    with Bars(Console(stderr=True), logger.info) as bars:
        task = asyncio.create_task(_redraw(tally, bars))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            _draw(tally, bars)


async def _redraw(tally: Tally, bars: Bars) -> None:
    while True:
        _draw(tally, bars)
        bars.say(tally.line())
        await asyncio.sleep(REDRAW_EVERY_SECONDS)


def _draw(tally: Tally, bars: Bars) -> None:
    bars.show("questions", tally.finished, tally.questions, tally.line().partition(", ")[2])
