"""The result of one question: the answer, its votes, and what they cost."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Self

from apportion.runs.declared_types import check_fields
from apportion.vote.lines import sealed, unsealed

Stopped = Literal["rule", "max_samples", "unanswered", "refused", "failures"]
"""Why sampling ended. "unanswered": no sample so far held an answer. "refused": the server refuses the question. After
"failures" the question is left to another run."""


@dataclass(frozen=True)
class Ballot:
    """One question, voted on.

    Args:
        id: the question's id.
        question_hash: content hash of the question's text.
        answer: the winner; None if no sample held an answer.
        gold: the right answer, if known.
        aliases: further right answers.
        correct: whether ``answer`` means the same as a right answer; None if none is known.
        votes: votes for each distinct answer, in the order and the words of first appearance.
        samples: samples that were counted.
        failed: those of the samples that never arrived.
        unparsed: those of the samples that held no answer.
        truncated: those of the samples that were cut off at their maximum length.
        finish_reasons: number of samples by the server's finish reason.
        cancelled: further samples that were asked for and cancelled when the rule stopped.
        waves: round trips.
        texts: number of distinct completions.
        repeats: whether each request for three samples or more gave one text, as if one seed were that of all of them;
            None without such a request.
        stopped: why sampling ended.
        prompt_length: tokens of one prompt; None if the server gave no count.
        prompt_tokens: prompt tokens that were paid for, once a request; None if the server gave no count.
        completion_tokens: completion tokens of the samples; None if the server gave no count.
        seconds: from the first request to the winner.
        disagreement: probability that the full vote would choose another answer, on the scale of eps under the rule
            "calibrated"; an upper bound under others.
        errors: distinct errors of failed samples.
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
    aliases: tuple[str, ...] = ()
    truncated: int = 0
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    repeats: bool | None = None

    @property
    def finished(self) -> bool:
        """Whether the rule or the maximum ended it, and not failures."""
        return self.stopped != "failures"

    @property
    def golds(self) -> tuple[str, ...]:
        """All right answers, none if none is known."""
        return () if self.gold is None else (self.gold, *self.aliases)

    @property
    def share(self) -> float | None:
        """The answer's share of the votes; None without votes."""
        return None if self.answer is None else self.votes[self.answer] / sum(self.votes.values())

    @property
    def shares_prompts(self) -> bool | None:
        """Whether several samples came from one request and shared its prompt; None if tokens are unknown."""
        if self.prompt_tokens is None or self.prompt_length is None:
            return None
        return self.prompt_tokens < self.prompt_length * (self.samples - self.failed)

    def to_json(self) -> str:
        """Return one line of JSON with a checksum."""
        return sealed(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Return the ballot that ``to_json`` wrote. Raises ValueError for anything else."""
        record = {"repeats": None} | unsealed(line)  # answers of version 0.3 lack it
        record |= {name: tuple(record[name]) for name in ("errors", "aliases") if isinstance(record.get(name), list)}
        check_fields(cls, record)
        ballot = cls(**record)
        if not _is_possible(ballot):
            raise ValueError("counts that no vote has")
        return ballot


def _is_possible(ballot: Ballot) -> bool:
    """Return whether the numbers of ``ballot`` fit together."""
    counts = [ballot.samples, ballot.failed, ballot.unparsed, ballot.cancelled, ballot.waves, ballot.texts]
    counts += [ballot.truncated, *ballot.finish_reasons.values()]
    tokens = [ballot.prompt_length, ballot.prompt_tokens, ballot.completion_tokens]
    return (
        min(*counts, *(number for number in tokens if number is not None)) >= 0
        and all(votes > 0 for votes in ballot.votes.values())
        and sum(ballot.votes.values()) == ballot.samples - ballot.failed - ballot.unparsed
        and (ballot.answer in ballot.votes if ballot.votes else ballot.answer is None)
        and (ballot.correct is None) == (ballot.gold is None)
        and 0 <= ballot.seconds < float("inf")
        and 0 <= ballot.disagreement <= 1
    )


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if a count is unknown.

    >>> total([3, 4]), total([3, None]), total([])
    (7, None, 0)
    """
    counts = list(counts)
    return None if None in counts else sum(count for count in counts if count is not None)
