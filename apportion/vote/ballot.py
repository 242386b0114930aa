"""What came of one question: the answer, its votes, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

Stopped = Literal["rule", "max_samples", "failures"]
"""Why sampling ended; after failures the question is left to another run."""


@dataclass(frozen=True)
class Ballot:
    """One question, voted on.

    ``question_hash`` is the content hash of its text. ``votes`` are those for each answer that means something else,
    in the order of first appearance and in the words in which it first appeared. Of the ``samples`` counted, ``failed``
    never arrived and ``unparsed`` held no answer; ``cancelled`` were asked for on top and left when the rule stopped.
    ``waves`` counts round trips, ``texts`` different completions. ``prompt_length`` is the tokens of one prompt,
    ``prompt_tokens`` those that were paid for: once a request. ``correct`` is None without a gold answer, token counts
    where the server gave none. ``disagreement`` is the probability, at most, that the full vote would choose another
    answer. ``errors`` are the different errors of samples that failed. ``completions`` are the samples in order, where
    they are kept.
    """

    id: str
    question_hash: str
    answer: str | None
    gold: str | None
    correct: bool | None
    votes: Mapping[str, int]
    samples: int
    failed: int
    unparsed: int
    cancelled: int
    waves: int
    texts: int
    stopped: Stopped
    prompt_length: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    disagreement: float
    errors: tuple[str, ...] = ()
    completions: tuple[Mapping[str, Any], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the rule, or the maximum, ended it."""
        return self.stopped != "failures"

    @property
    def share(self) -> float | None:
        """The share of the votes that the answer has; None without votes."""
        return None if self.answer is None else self.votes[self.answer] / sum(self.votes.values())

    @property
    def shares_prompts(self) -> bool | None:
        """Whether samples came several a request, which pay for one prompt together; None where tokens are unknown."""
        if self.prompt_tokens is None or self.prompt_length is None:
            return None
        return self.prompt_tokens < self.prompt_length * (self.samples - self.failed)

    @property
    def repeats(self) -> bool | None:
        """Whether all samples were the same text; None where fewer than three arrived, which says little."""
        arrived = self.samples - self.failed
        return None if arrived < 3 else self.texts == 1

    def to_json(self) -> str:
        """One line of JSON; without the completions where none are kept."""
        record = {key: value for key, value in asdict(self).items() if key != "completions" or value}
        return json.dumps(record, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """What ``to_json`` wrote, but for the completions, which nothing later reads; ValueError for anything else."""
        record = json.loads(line)
        known = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or not known - {"errors", "completions"} <= record.keys() <= known:
            raise ValueError("not a finished question")
        return cls(**record | {"errors": tuple(record.get("errors", ())), "completions": ()})


def total(counts: Iterable[int | None]) -> int | None:
    """The sum; None where one is unknown.

    >>> total([3, 4]), total([3, None]), total([])
    (7, None, 0)
    """
    counts = list(counts)
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
