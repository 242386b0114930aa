"""Ballots, and a server whose answers depend on the question and the seed only, so that any run can be replayed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from apportion.endpoint import Completion, seed_of
from apportion.vote import Ballot, Question, Sample
from tests.endpoint.fault_server import Behaviour, Request, ok

BALLOT = Ballot(
    id="a",
    question_hash="0",
    answer="7",
    gold="7",
    correct=True,
    votes={"7": 3, "8": 1},
    samples=5,
    failed=0,
    unparsed=1,
    cancelled=0,
    waves=2,
    texts=4,
    stopped="rule",
    prompt_length=10,
    prompt_tokens=50,
    completion_tokens=500,
    seconds=1.5,
    disagreement=0.01,
)


def make_ballot(id: str = "a", **changes: Any) -> Ballot:
    return replace(BALLOT, id=id, **changes)


def make_sample(id: str = "a", number: int = 0, text: str | None = "It is \\boxed{7}.", **changes: Any) -> Sample:
    completion = Completion(text, 5, 10, "stop") if text is not None else Completion.failed("no")
    sample = Sample.of(id, "0", number, number, completion)
    return replace(sample, **{"answer": None if text is None else "7"} | changes)


def make_questions(count: int) -> list[Question]:
    """Return questions of rising difficulty. The right answer to question q is q."""
    return [Question(f"q{q}", f"Question {q} of {count}?", str(q)) for q in range(count)]


def answer_of(prompt: str, seed: int) -> str | None:
    """Return the server's answer for this seed: the right answer, one of four others, or none."""
    if not prompt.startswith("Question"):
        return "2"  # the prompt that checks whether the server is alive
    words = prompt.split()
    q, count = int(words[1]), int(words[3].strip("?"))
    draw = random.Random(f"{prompt} {seed}")
    if draw.random() < 0.05:
        return None
    return str(q) if draw.random() > 0.7 * q / count else str(count + draw.randrange(4))


def answering(delay: float = 0.0) -> Behaviour:
    """Return one choice a request, with ``\\boxed`` around its answer, after up to ``delay`` seconds."""

    def text(request: Request, place: int) -> str:
        answer = answer_of(request.prompt.splitlines()[0], request.seed or 0)
        return "I do not know." if answer is None else f"So it is \\boxed{{{answer}}}."

    async def reply(request: Request, send: Any) -> None:
        await ok(text, most=1, delay=delay * random.Random(request.seed).random())(request, send)

    return reply


def stream_of(question: Question, samples: int = 64, seed: int = 0) -> list[str | None]:
    """Return the answers to ``question`` in the order of their sample numbers."""
    return [answer_of(question.prompt, seed_of(seed, question.id, number)) for number in range(samples)]
