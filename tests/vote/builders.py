"""Ballots, and a server whose answers depend on the question and the seed only, so that any run can be replayed."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace

from apportion.endpoint import Completion, seed_of
from apportion.stopping import USUAL_RULE, decide
from apportion.vote import Ballot, Question, Sample, vote_async
from tests.endpoint.fault_server import FaultServer, ok

BALLOT = """{"id": "a", "question_hash": "0", "answer": "7", "gold": "7", "correct": true, "votes": {"7": 3, "8": 1},
"samples": 5, "failed": 0, "unparsed": 1, "cancelled": 0, "waves": 2, "texts": 4, "stopped": "rule",
"prompt_length": 10, "prompt_tokens": 50, "completion_tokens": 500, "seconds": 1.5, "disagreement": 0.01}"""


def make_ballot(id="a", **changes):
    return Ballot(**json.loads(BALLOT) | {"id": id} | changes)


def make_sample(id="a", number=0, text="It is \\boxed{7}.", **changes):
    completion = Completion(text, 5, 10, "stop") if text is not None else Completion.failed("no")
    sample = Sample.of(id, "0", number, number, completion)
    return replace(sample, **{"answer": None if text is None else "7"} | changes)


def make_questions(count):
    """Return questions of rising difficulty. The right answer to question q is q."""
    return [Question(f"q{q}", f"Question {q} of {count}?", str(q)) for q in range(count)]


def answer_of(prompt, seed):
    """Return the server's answer for this seed: the right answer, one of four others, or none."""
    if not prompt.startswith("Question"):
        return "2"  # the prompt that checks whether the server is alive
    words = prompt.split()
    q, count = int(words[1]), int(words[3].strip("?"))
    draw = random.Random(f"{prompt} {seed}")
    if draw.random() < 0.05:
        return None
    return str(q) if draw.random() > 0.7 * q / count else str(count + draw.randrange(4))


def answering(delay=0.0):
    """Return one choice a request, with ``\\boxed`` around its answer, after up to ``delay`` seconds."""

    def text(request, place):
        answer = answer_of(request.prompt.splitlines()[0], request.seed or 0)
        return "I do not know." if answer is None else f"So it is \\boxed{{{answer}}}."

    async def reply(request, send):
        await ok(text, most=1, delay=delay * random.Random(request.seed).random())(request, send)

    return reply


def stream_of(question, samples=64, seed=0):
    """Return the answers to ``question`` in the order of their sample numbers."""
    return [answer_of(question.prompt, seed_of(seed, question.id, number)) for number in range(samples)]


def voted(script, out, questions, **settings):
    """Return the report of a vote on a server with this script, and the requests that the server got."""

    async def inner():
        async with FaultServer(script) as server, asyncio.timeout(60):
            given = {"base_url": server.url, "model": "tiny", "out": out, "equivalence": "exact"} | settings
            return await vote_async(questions, **given), server.requests

    return asyncio.run(inner())


def report_of(script, out, questions, **settings):
    return voted(script, out, questions, **settings)[0]


def expect_replay(ballots, questions, rule=USUAL_RULE, most=64, **settings):
    """Check that these are the ballots of a replay of the answers of ``answering``, and return the replay."""
    streams = [stream_of(question, most) for question in questions]
    replayed = decide(streams, rule, most, curtail=True, **settings)
    found = {ballot.id: ballot for ballot in ballots}
    assert len(ballots) == len(questions)
    for question, decision, stream in zip(questions, replayed, streams, strict=True):
        ballot = found[question.id]
        taken = stream[: ballot.samples]
        assert (ballot.samples, ballot.answer) == (decision.samples, decision.answer)
        assert ballot.votes == Counter(answer for answer in taken if answer is not None)
        assert ballot.unparsed == taken.count(None) and ballot.failed == 0
        assert ballot.correct == (decision.answer == question.gold)
    return replayed
