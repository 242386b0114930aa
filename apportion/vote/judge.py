"""A judge on the server of a vote: its settings, how the equivalence "judge" sends it prompts, and its kept verdicts.

The judge is the model that answers, unless another is named. It samples at temperature 0 and has its own connection, so
its tokens are not among those of the vote. ``answers.judge.jsonl`` beside ``answers.jsonl`` holds its verdicts, so that
a vote that is resumed does not pay for them again.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from apportion.answers.judge import PROMPT, Ask, JudgeVerdict
from apportion.endpoint import Completion, Endpoint
from apportion.runs.declared_types import check_fields
from apportion.types import prompt_id
from apportion.vote.lines import LineWriter, read_records, sealed, unsealed

CONCURRENCY = 8
"""Most requests to the judge in flight, beside those of the vote."""
MAX_TOKENS = 1024
"""Longest reply. Yes or no is one token, but some models reason before it."""


def judge_endpoint(endpoint: Endpoint, model: str | None = None) -> Endpoint:
    """Return the settings of the judge: those of ``endpoint``, greedy, without its system prompt, and with ``model``.

    >>> judge = judge_endpoint(Endpoint("http://localhost:8000/v1", "small"), "large")
    >>> judge.model, judge.temperature
    ('large', 0.0)
    """
    return replace(
        endpoint,
        model=model or endpoint.model,
        temperature=0.0,
        top_p=None,
        max_tokens=None if endpoint.max_tokens is None else MAX_TOKENS,
        system=None,
        concurrency=min(endpoint.concurrency, CONCURRENCY),
    )


@asynccontextmanager
async def connect_judge(endpoint: Endpoint, model: str | None = None) -> AsyncIterator[Ask]:
    """Connect to the judge for the length of an ``async with``, and give the ``ask`` of ``make_equivalence``.

        async with connect_judge(setup.endpoint) as ask:
            equivalence = make_equivalence("judge", ask=ask)

    ``ask`` raises EndpointError if the server refuses every request. Errors of connecting are those of ``Endpoint``.
    """
    async with judge_endpoint(endpoint, model).connect() as client:

        async def ask(prompt: str) -> Completion:
            async with aclosing(client.sample(prompt, 1, key=prompt)) as completions:
                return await anext(completions)

        yield ask


def verdicts_path(path: Path) -> Path:
    """Return where the verdicts for the answers at ``path`` are kept."""
    return path.with_suffix(".judge.jsonl")


@contextmanager
def keep_verdicts(path: Path, model: str) -> Iterator[tuple[list[JudgeVerdict], Callable[[JudgeVerdict], None]]]:
    """Give the verdicts of ``model`` at ``path``, and a function that adds one, for the length of a ``with``.

    They are the ``known`` and the ``on_verdict`` of the judge. Verdicts of another model or to another prompt are left
    in the file and not given. Only one process may write to the file; the lock of the vote sees to that.

    Raises JournalError for a file of something else, or one that cannot be read or written.
    """
    records, end, prompt = [], 0, prompt_id(PROMPT)
    for record, _, offset in read_records(path, _KeptVerdict.from_json, "verdicts of a judge"):
        records.append(record)
        end = offset
    writer = LineWriter(path, end, "a verdict")

    def add(verdict: JudgeVerdict) -> None:
        kept = _KeptVerdict(verdict.question_hash, model, prompt, verdict.first, verdict.second, verdict.same)
        writer.append(sealed(vars(kept)), to_disk=False)

    try:
        yield [record.verdict for record in records if (record.model, record.prompt) == (model, prompt)], add
    finally:
        writer.close()


@dataclass(frozen=True)
class _KeptVerdict:
    """One line: a verdict with the model that gave it and a hash of the prompt. ``id`` is the hash of the question."""

    id: str
    model: str
    prompt: str
    first: str
    second: str
    same: bool

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Return the verdict of a line. Raises ValueError for anything else."""
        record = unsealed(line)
        check_fields(cls, record)
        return cls(**record)

    @property
    def verdict(self) -> JudgeVerdict:
        return JudgeVerdict(self.id, self.first, self.second, self.same)
