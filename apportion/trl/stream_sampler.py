"""The process that samples and scores for a stream: a copy of the policy, and the user's reward functions.

It samples a batch of requests by ``generate`` of transformers, scores it, and sends it back. Before each batch it loads
the newest weights. It writes down what it is doing, and the time of each token and call, so that the trainer can tell
a slow process from one that hangs.
"""

import asyncio
import inspect
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor
from transformers.utils import logging

from apportion.engines.weights import load_weights
from apportion.runs.children import end_with_parent
from apportion.trl.reading import RewardReader

OWN_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns of a row that reward functions get under other names."""
DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher sets for the processes of a training run, which this one is not."""


@dataclass(frozen=True)
class SamplerJob:
    """What the process needs: the policy in ``model`` and how it is loaded, and how to sample and to score.

    ``reader`` knows the names of the functions, and which have returned before, in the run that is resumed.
    """

    model: str
    loading: Mapping[str, Any]
    device: str
    tokenizer: Any
    generation: Mapping[str, Any]
    chat: Mapping[str, Any]
    functions: Sequence[Callable[..., Any]]
    reader: RewardReader
    seed: int
    weights: Path | None = None


@dataclass(frozen=True, slots=True)
class StreamCompletion:
    """A sampled completion: prompt and completion as text or messages, their tokens, and scores [F].

    ``logprobs`` [T] are those of the tokens ``ids`` [T] at the temperature of the loss.
    """

    prompt: Any
    content: Any
    prompt_ids: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class SignOfLife:
    """What a process is doing, and when it last got on with it, in memory that its parent reads."""

    at: Any
    doing: Any

    def give(self, doing: str = "") -> None:
        """Say that the process goes on, and what it begins to do."""
        self.at.value = time.monotonic()
        if doing:
            self.doing.value = doing.encode()[:199]

    @property
    def text(self) -> str:
        """What the process was doing last."""
        return str(self.doing.value.decode(errors="replace"))


@dataclass(frozen=True)
class SampledBatch:
    """Completions by the number of their request, and how long both parts took.

    ``reader`` knows what is wrong with the reward functions, and which ones have returned.
    """

    completions: Sequence[tuple[int, StreamCompletion]]
    reader: RewardReader
    seconds: Mapping[str, float]


def run_sampler(link: Connection, sign: SignOfLife, job: SamplerJob) -> None:
    """Sample what comes through ``link`` until it is closed. An error is sent back as text, and ends the process."""
    end_with_parent()
    for name in DISTRIBUTED:
        os.environ.pop(name, None)
    try:
        sampler = _Sampler(job, sign)
        link.send("ready")
        while True:
            link.send(sampler.sample(link.recv()))
            sign.give("waiting for requests")
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the trainer raises it
        link.send((f"{type(error).__name__}: {error}", traceback.format_exc()))


@dataclass
class _Sampler:
    job: SamplerJob
    sign: SignOfLife
    version: int | None = None

    def __post_init__(self) -> None:
        self.sign.give("loading the model")
        logging.disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(self.job.model, **self.job.loading)
        self.model = model.to(self.job.device).eval()
        self.settings = GenerationConfig(do_sample=True, **self.job.generation)
        reader, functions = self.job.reader, enumerate(self.job.functions)
        self.functions = [reader.reading(place, function, self._wait) for place, function in functions]

    def sample(self, requests: Sequence[tuple[int, Mapping[str, Any]]]) -> SampledBatch:
        """Return scored completions of ``requests``: pairs of a number and a row of the data set."""
        started = time.monotonic()
        self.sign.give("loading the weights")
        assert self.job.weights is not None
        self.version = load_weights(self.job.weights, self.model, self.version)
        numbers, rows = zip(*requests, strict=True)
        # numbers never come again, also in a resumed run, so neither do the random numbers
        torch.manual_seed(int(np.random.SeedSequence([self.job.seed, numbers[0]]).generate_state(1)[0]))
        self.sign.give(f"generating {len(rows)} completions")
        found = self._generate(rows)
        generated = time.monotonic()
        scores = self._scores(rows, found)
        scored = [replace(each, scores=tuple(own)) for each, own in zip(found, scores.tolist(), strict=True)]
        seconds = {"seconds_generate": generated - started, "seconds_reward": time.monotonic() - generated}
        pairs = tuple(zip(numbers, scored, strict=True))
        return SampledBatch(pairs, self.job.reader, seconds)

    def _generate(self, rows: Sequence[Mapping[str, Any]]) -> list[StreamCompletion]:
        tokenizer = self.job.tokenizer
        prompts = [row["prompt"] for row in rows]
        asked = [self._tokens(prompt) for prompt in prompts]
        width = max(map(len, asked))
        ids = torch.tensor([[self.settings.pad_token_id] * (width - len(own)) + own for own in asked])
        mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in asked])
        chosen = _ChosenTokens(float(self.job.generation["temperature"]), self.sign)
        with torch.inference_mode():
            sequences = self.model.generate(
                input_ids=ids.to(self.job.device),
                attention_mask=mask.to(self.job.device),
                generation_config=self.settings,
                logits_processor=[chosen],
            )
            chosen.keep(sequences)
        logprobs = torch.cat(chosen.logprobs, 1).cpu().numpy()
        found = []
        for prompt, own, completion, known in zip(
            prompts, asked, sequences[:, width:].cpu().tolist(), logprobs, strict=True
        ):
            ends = (i + 1 for i, token in enumerate(completion) if token in self.job.generation["eos_token_id"])
            length = next(ends, len(completion))
            text = tokenizer.decode(completion[:length], skip_special_tokens=True)
            content = text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            of_prompt, of_completion = np.array(own, np.int64), np.array(completion[:length], np.int64)
            found.append(StreamCompletion(prompt, content, of_prompt, of_completion, known[:length].copy()))
        return found

    def _tokens(self, prompt: Any) -> list[int]:
        """Return the tokens of a prompt: of a text as it is, of messages by the chat template."""
        if isinstance(prompt, str):
            return list(self.job.tokenizer(prompt)["input_ids"])
        tokens = self.job.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **self.job.chat
        )
        return list(tokens["input_ids"])

    def _scores(self, rows: Sequence[Mapping[str, Any]], completions: Sequence[StreamCompletion]) -> Tensor:
        """Return scores [N, F]: NaN for None, and infinity for what failed."""
        columns = {name: [row[name] for row in rows] for name in rows[0] if name not in OWN_COLUMNS}
        columns |= {
            "prompts": [each.prompt for each in completions],
            "completions": [each.content for each in completions],
            "completion_ids": [each.ids.tolist() for each in completions],
        }
        found = []
        for function, name in zip(self.functions, self.job.reader.names, strict=True):
            self.sign.give(f"calling the reward function {name}")
            values = function(**columns)
            values = asyncio.run(values) if inspect.iscoroutine(values) else values
            found.append([torch.nan if value is None else value for value in values])
        self.sign.give("sending completions")
        return torch.tensor(found, dtype=torch.float32).T

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.sign.give("waiting to call the reward functions again")
            time.sleep(min(left, 1.0))


class _ChosenTokens(LogitsProcessor):
    """Keeps the log-probability of each token that ``generate`` chose, before it cuts the distribution."""

    def __init__(self, temperature: float, sign: SignOfLife) -> None:
        self.temperature, self.sign = temperature, sign
        self.logprobs: list[Tensor] = []
        self._latest: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.keep(input_ids)
        self._latest = torch.log_softmax(scores.float() / self.temperature, -1)
        self.sign.give()
        return scores

    def keep(self, sequences: Tensor) -> None:
        """Keep the log-probability of the last token of each of ``sequences`` [N, T]."""
        if self._latest is not None:
            self.logprobs.append(self._latest.gather(1, sequences[:, -1:]))
