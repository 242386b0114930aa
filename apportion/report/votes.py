"""What a report shows of one vote: agreement, samples by question, samples without an answer, and saved samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apportion.types import Counts, Floats
from apportion.untrusted import shown

if TYPE_CHECKING:
    from apportion.vote.ballot import Ballot

LONGEST_VOTE = 100_000
"""A larger max_samples is taken for a mistake in the file."""


@dataclass(frozen=True, eq=False, kw_only=True)
class VoteProfile:
    """One vote, as the report shows it. V questions are finished, in the order in which they were.

    Args:
        name: what it is called on the page.
        max_samples: samples of a full vote on one question; None if the settings are missing.
        samples: samples that were counted for each question [V].
        share: the winner's share of its votes [V], nan without votes.
        correct: 1 if the answer is right, 0 if it is wrong, nan if no right answer is known [V].
        failed, unparsed, truncated: samples that never arrived, that held no answer, and that were cut off [V].
        open_questions: questions that have samples and are not finished.
        open_samples: their samples.
        style: its place on the page, which decides how it is drawn.
    """

    name: str
    max_samples: int | None
    samples: Counts
    share: Floats
    correct: Floats
    failed: Counts
    unparsed: Counts
    truncated: Counts
    open_questions: int
    open_samples: int
    style: int = 0

    @property
    def saved(self) -> float | None:
        """The share of the full votes' samples that was saved; None if unknown."""
        if self.max_samples is None or not len(self.samples):
            return None
        return 1 - float(self.samples.sum()) / (self.max_samples * len(self.samples))


def is_vote(path: Path) -> bool:
    """Return whether ``path`` is the file of a vote's answers: its settings or its samples are beside it."""
    if path.suffix != ".jsonl":
        return False
    from apportion.vote.journal import samples_path, settings_path  # noqa: PLC0415 - slow to import

    return settings_path(path).is_file() or samples_path(path).is_file()


def vote_profile(path: Path, name: str) -> VoteProfile:
    """Return the profile of the vote whose answers are at ``path``. Raises JournalError."""
    from apportion.vote.journal import read_recorded  # noqa: PLC0415 - slow to import

    record = read_recorded(path)
    ballots = list(record.ballots.values())
    waiting = [samples for id, samples in record.samples.items() if id not in record.ballots]

    def column(field: str, kind: type[Any] = np.float64) -> Any:
        """Return a field of each ballot; None is nan."""
        return np.array([getattr(ballot, field) for ballot in ballots], kind)

    return VoteProfile(
        name=name,
        max_samples=_max_samples(path, ballots),
        samples=column("samples", np.int64),
        share=column("share"),
        correct=column("correct"),
        failed=column("failed", np.int64),
        unparsed=column("unparsed", np.int64),
        truncated=column("truncated", np.int64),
        open_questions=len(waiting),
        open_samples=sum(map(len, waiting)),
    )


def _max_samples(path: Path, ballots: list[Ballot]) -> int | None:
    """Return the number of samples of a full vote from the settings; None without settings."""
    from apportion.vote.journal import read_started, settings_path  # noqa: PLC0415 - slow to import
    from apportion.vote.lines import JournalError  # noqa: PLC0415

    if not settings_path(path).is_file():
        return None
    found = read_started(path).get("max_samples")
    most = max((ballot.samples for ballot in ballots), default=1)
    if type(found) is not int or not most <= found <= LONGEST_VOTE:
        raise JournalError(
            f"max_samples in {settings_path(path)} must be an integer from {most} to {LONGEST_VOTE:,}, got "
            f"{shown(found)}; restore the settings of this vote"
        )
    return found
