"""What a person sees while questions are asked: bars on a terminal, else a line in the log now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from apportion.samplers import Completion
from apportion.vote.ballot import Ballot

LINE_EVERY_SECONDS = 10.0
REDRAW_EVERY_SECONDS = 0.25

logger = logging.getLogger("apportion.vote")


@dataclass
class Tally:
    """Running totals of one run: its own ``samples`` and ``tokens``, and all finished questions, earlier ones too."""

    questions: int
    max_samples: int
    finished: int = 0
    finished_samples: int = 0
    samples: int = 0
    tokens: int = 0

    def sample(self, completion: Completion) -> None:
        """Counts one sample that came."""
        self.samples += 1
        self.tokens += completion.tokens or 0

    def finish(self, ballot: Ballot) -> None:
        """Counts one finished question."""
        self.finished += 1
        self.finished_samples += ballot.samples

    def line(self) -> str:
        """The totals in words.

        >>> Tally(questions=8, max_samples=64, finished=2, finished_samples=32, samples=40, tokens=9000).line()
        '2 of 8 questions, 40 samples, 9,000 tokens, 75% of the samples saved'
        """
        saved = f", {self.saved:.0%} of the samples saved" if self.finished else ""
        return f"{self.finished} of {self.questions} questions, {self.samples} samples, {self.tokens:,} tokens{saved}"

    @property
    def saved(self) -> float:
        """The share of the samples of a full vote that finished questions did without."""
        return 1 - self.finished_samples / (self.max_samples * self.finished) if self.finished else 0.0


@asynccontextmanager
async def shown(tally: Tally) -> AsyncIterator[None]:
    """Shows ``tally`` on stderr where that is a terminal, else in the log, until the block ends."""
    console = Console(stderr=True)
    showing = asyncio.create_task(_bars(tally, console) if console.is_terminal else _lines(tally))
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _bars(tally: Tally, console: Console) -> None:
    columns = (TextColumn("questions"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        bar = bars.add_task("", total=tally.questions, note="")
        try:
            while True:
                bars.update(bar, completed=tally.finished, note=_note(tally))
                await asyncio.sleep(REDRAW_EVERY_SECONDS)
        finally:
            bars.update(bar, completed=tally.finished, note=_note(tally))


async def _lines(tally: Tally) -> None:
    while True:
        await asyncio.sleep(LINE_EVERY_SECONDS)
        logger.info(tally.line())


def _note(tally: Tally) -> str:
    return tally.line().partition(", ")[2]
