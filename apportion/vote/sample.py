"""One sample of a question, as it is kept: the completion, the answer in it, and what it cost."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from apportion.answers import read_answer_now
from apportion.answers.extraction import ends_reasoning
from apportion.endpoint import Completion
from apportion.endpoint.reply import CUT, FILTERED
from apportion.runs.declared_types import check_fields
from apportion.vote.lines import sealed, unsealed


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of the question ``id``.

    Args:
        id: the question's id.
        question_hash: content hash of the question.
        number: the sample's number, from 0. Votes are counted in this order.
        seed: the seed of its request; None if none was sent.
        answer: the answer in its text; None if there is none.
        text: the completion; None if the sample failed, or if texts are not kept.
        reasoning: what the model thought, if the server sends that apart; None if texts are not kept.
        text_hash: content hash of the completion; None if the sample failed.
        finish_reason: why the completion ended, in the server's words.
        tokens: completion tokens; None if the server gave no count.
        prompt_tokens: prompt tokens, once a request; None if the server gave no count.
        error: why the sample failed, in one sentence; None if it arrived.
        refused: whether it failed because the server refuses the prompt.
    """

    id: str
    question_hash: str
    number: int
    seed: int | None
    answer: str | None
    text: str | None
    reasoning: str | None
    text_hash: str | None
    finish_reason: str | None
    tokens: int | None
    prompt_tokens: int | None
    error: str | None
    refused: bool

    @classmethod
    def of(cls, id: str, question_hash: str, number: int, seed: int | None, completion: Completion) -> Self:
        """Return a sample of ``completion``, whose answer has not been read yet."""
        text = completion.text
        return cls(
            id=id,
            question_hash=question_hash,
            number=number,
            seed=seed,
            answer=None,
            text_hash=None if text is None else _hash(text),
            **asdict(completion) | {"error": completion.error or ("no text" if text is None else None)},
        )

    @property
    def arrived(self) -> bool:
        """Whether the sample arrived and did not fail."""
        return self.error is None

    @property
    def truncated(self) -> bool:
        """Whether the completion was cut off at its maximum length."""
        return CUT.search(self.finish_reason or "") is not None

    def read(self, extractor: Callable[[str], str | None]) -> Self:
        """Return the sample with the answer that ``extractor`` finds in its text. Without a text it is unchanged.

        A completion that was cut off has one only if its reasoning had ended before, and a filtered one has none.
        """
        if self.text is None:
            return self
        return self.with_answer(None if self.states_nothing else read_answer_now(extractor, self.text))

    def with_answer(self, answer: str | None) -> Self:
        """Return the sample with this answer."""
        return replace(self, answer=answer)

    @property
    def states_nothing(self) -> bool:
        """Whether the text can state no answer: a filter ended it, or it was cut off before its reasoning ended.

        The prompt may have opened the reasoning, so a text without tags may be all reasoning.
        """
        filtered = FILTERED.search(self.finish_reason or "") is not None
        return filtered or (self.truncated and not (self.reasoning or ends_reasoning(self.text or "")))

    def without_text(self) -> Self:
        """Return the sample without its text and reasoning."""
        return replace(self, text=None, reasoning=None)

    def to_json(self) -> str:
        """Return one line of JSON with a checksum, without the fields that are null or false."""
        return sealed({key: value for key, value in asdict(self).items() if not (value is None or value is False)})

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Return the sample that ``to_json`` wrote. Raises ValueError for anything else."""
        record = unsealed(line)
        whole: dict[str, Any] = {each.name: False if each.name == "refused" else None for each in fields(cls)} | record
        check_fields(cls, whole)
        sample = cls(**whole)
        counts = (sample.number, sample.tokens or 0, sample.prompt_tokens or 0)
        if min(counts) < 0 or sample.arrived == (sample.text_hash is None):
            raise ValueError("numbers that no sample has")
        return sample


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
