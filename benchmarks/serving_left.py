"""Measure what a server computes after a client has left.

The wave is eight completions of equal length and the same text, with at most eight samples. So the rule needs as few
votes as possible, stops within the wave, and leaves the rest.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import openai

from apportion.lab.world.task import EOS, PAD
from apportion.vote import vote
from benchmarks.common import spread

WAVE = 8
OURS, FREE, STREAMED = f"`vote`, wave {WAVE}", "`vote`, wave free", f"streamed, {WAVE} at once"
IDLE_SECONDS = 0.3


@dataclass(frozen=True)
class Left:
    """A wave that a client left: the completions it needed, the requests in flight, and the server's processor seconds.

    ``until_seconds`` is the server's time until the client left, and ``after_seconds`` its time after that.
    """

    needed: int
    in_flight: int
    until_seconds: float
    after_seconds: float

    @property
    def each_seconds(self):
        """The processor seconds of one completion."""
        return self.until_seconds / self.needed

    @property
    def computed(self):
        """The share of the requests in flight that the server computed; 0 if there were none."""
        return self.after_seconds / (self.in_flight * self.each_seconds) if self.in_flight else 0.0


def settled(served):
    """Wait until the server is idle, and return its processor seconds so far."""
    before = served.cpu_seconds
    while True:
        time.sleep(IDLE_SECONDS)
        now = served.cpu_seconds
        if now - before <= 0.1 * IDLE_SECONDS:
            return now
        before = now


def left_behind(served, question, seed, tokens):
    """Measure waves of ``tokens`` tokens a completion: as ``vote`` sends them, free ones, and streamed by hand."""
    ours = _by_vote(served, question, seed, tokens, WAVE)
    return {
        OURS: ours,
        FREE: _by_vote(served, question, seed, tokens, "free"),
        STREAMED: _streamed(served, question, tokens, ours.needed),
    }


def left_note(found, tokens):
    """Return the results in words, one item of ``found`` a seed."""
    computed = {name: spread([one[name].computed for one in found], ".0%") for name in (OURS, STREAMED)}
    dearer = spread([one[STREAMED].each_seconds / one[OURS].each_seconds for one in found], ".2f")
    free = max(one[FREE].in_flight for one in found)
    return (
        f"One question, {WAVE} completions of {tokens} tokens, and the default rule at M = {WAVE}, which leaves when "
        f"it has the votes that it needs. The server computed {computed[OURS]} of what was left in flight, as "
        f"`apportion vote` sends requests. Cancelling does not save this share. Streamed by the `openai` client the "
        f"share is {computed[STREAMED]}, but a streamed completion costs {dearer} times the processor time. "
        f"Free waves leave {free or 'nothing'} in flight."
    )


def aftermath(served, before, needed, in_flight):
    """Return what the server does after the client has left; to be called at that moment."""
    left = served.cpu_seconds
    return Left(needed, in_flight, left - before, settled(served) - left)


def of_length(tokens):
    """Return what a request says beside the rest, so that each completion ends by itself after ``tokens`` tokens.

    One that is cut off at its maximum length has no answer.
    """
    end_now = [tokens, 1e6]  # from here on the end is a million times as likely
    config = {"min_new_tokens": tokens, "exponential_decay_length_penalty": end_now}
    config |= {"eos_token_id": EOS, "pad_token_id": PAD}
    return {"max_tokens": tokens + WAVE, "extra_body": {"generation_config": json.dumps(config)}}


def _by_vote(served, question, seed, tokens, wave):
    before = settled(served)
    with tempfile.TemporaryDirectory() as folder:
        report = vote(
            [question],
            base_url=served.base_url,
            model=served.model,
            out=Path(folder) / "answers.jsonl",
            max_samples=WAVE,
            wave=wave,
            template="{question}",
            extract="last_number",
            equivalence="exact",
            temperature=0.0,
            **of_length(tokens),
            seed=seed,
            concurrency=WAVE,
        )
    return aftermath(served, before, report.ballots[0].samples, report.usage.cancelled)


def _streamed(served, question, tokens, needed):
    before = settled(served)
    asyncio.run(_leave(served, question, tokens, needed))
    return aftermath(served, before, needed, WAVE - needed)


async def _leave(served, question, tokens, needed):
    """Stream a wave, and leave when ``needed`` completions are complete."""
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:

        async def whole():
            stream = await client.chat.completions.create(
                model=served.model,
                messages=[{"role": "user", "content": question.prompt}],
                temperature=0.0,
                stream=True,
                **of_length(tokens),
            )
            async with stream:
                async for _ in stream:
                    pass

        tasks = [asyncio.create_task(whole()) for _ in range(WAVE)]
        for finished in islice(asyncio.as_completed(tasks), needed):
            await finished
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
