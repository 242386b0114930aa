"""The sampler: rollouts of many prompts with their behaviour log-probabilities, never computing one prefix twice.

Rollouts that have written the same tokens after the same prompt are one row of the batch: each row is a distinct
prefix, and a rollout only holds the number of its row. So a prompt is read once however many rollouts it gets, a row
splits where its rollouts differ, and a row whose rollouts have all ended is gone. Every rollout still draws by itself,
with uniform numbers of its own, so the distribution is exactly that of independent sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from apportion.lab.decoder import Decoder
from apportion.lab.task import Problem, verify
from apportion.lab.tokenizer import ledger_tokenizer
from apportion.types import Prompt, Rollout

Reward = Literal["exact", "share"]
MAX_ROWS = 256
MAX_NEW_TOKENS = 14


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What the policy wrote: token ids [T], their log-probabilities [T] when sampled, and whether it came to an end.

    ``tokens`` ends with the end token where ``finished``; otherwise it was cut off. ``logprobs`` (float32) are those of
    the distribution that was sampled from, temperature included; of greedy completions, those at temperature 1.

    ``score_norm`` is the squared norm of the gradient of their sum with respect to the logits of that distribution
    (over the temperature): the sum over tokens a of |e_a - pi|^2 = 1 - 2 pi_a + |pi|^2. None where it was not recorded.
    """

    tokens: tuple[int, ...]
    logprobs: NDArray[np.float32]
    finished: bool
    score_norm: float | None = None


@torch.inference_mode()
def sample(
    policy: Qwen2ForCausalLM,
    prompts: Sequence[Sequence[int]],
    counts: ArrayLike,
    generator: torch.Generator | None = None,
    temperature: float = 1.0,
    max_new_tokens: int = MAX_NEW_TOKENS,
    max_rows: int = MAX_ROWS,
) -> list[list[Completion]]:
    """``counts[q]`` completions of ``prompts[q]`` (token ids), one list a prompt, from the policy as it is now.

    Temperature 0 is greedy. Rollouts run in chunks of at most ``max_rows`` (256 keep the work in the processor's
    cache), prompts of like length together; each rollout has its own random numbers, drawn beforehand, so chunks change
    the speed and not the samples (up to rounding).
    """
    counts = _checked_counts(prompts, counts)
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}; 0 is greedy")
    if max_new_tokens < 1 or max_rows < 1:
        raise ValueError(
            f"max_new_tokens and max_rows must be at least 1, got {max_new_tokens} and {max_rows}; raise them"
        )
    owners = np.repeat(np.arange(len(prompts)), counts)
    uniforms = torch.rand(len(owners), max_new_tokens, generator=generator) if temperature > 0 else None
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    order = np.argsort(lengths[owners], kind="stable")
    decoder = Decoder(policy, int(lengths.max(initial=0)), max_new_tokens)
    completions: list[Any] = [None] * len(owners)
    for first in range(0, len(order), max_rows):
        chunk = order[first : first + max_rows]
        read, rows = np.unique(owners[chunk], return_inverse=True)
        draws = None if uniforms is None else uniforms[torch.from_numpy(chunk)]
        texts = [prompts[q] for q in read]
        written = _grow(decoder, texts, rows, draws, temperature, max_new_tokens)
        for rollout, completion in zip(chunk, written, strict=True):
            completions[rollout] = completion
    ends = np.cumsum(counts)
    return [completions[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _checked_counts(prompts: Sequence[Sequence[int]], counts: ArrayLike) -> NDArray[np.int64]:
    counts = np.asarray(counts, np.int64)
    if counts.shape != (len(prompts),):
        raise ValueError(
            f"counts must be [{len(prompts)}], one a prompt, got {counts.shape}; give 0 where none is wanted"
        )
    if (counts < 0).any():
        raise ValueError(f"counts must be at least 0, got {counts.min()}; give 0 where none is wanted")
    if not all(map(len, prompts)):
        raise ValueError("a prompt must have at least one token, got an empty one; the first token needs a context")
    return counts


def _grow(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    rows: NDArray[np.int64],
    uniforms: torch.Tensor | None,
    temperature: float,
    max_new_tokens: int,
) -> list[Completion]:
    """One completion for each entry of ``rows`` [N], the prompt it continues; ``uniforms`` [N, max_new_tokens]."""
    alive, row = torch.arange(len(rows)), torch.from_numpy(rows)
    tokens = torch.zeros(len(rows), max_new_tokens, dtype=torch.long)
    logprobs = torch.zeros(len(rows), max_new_tokens)
    squares = torch.ones(len(rows), max_new_tokens)
    lengths = torch.full((len(rows),), max_new_tokens)
    finished = torch.zeros(len(rows), dtype=torch.bool)
    logits = decoder.read(prompts)
    for step in range(max_new_tokens):
        distribution = (logits / (temperature or 1.0)).log_softmax(-1)
        probabilities = distribution.exp()
        if uniforms is None:
            token = distribution.argmax(-1)[row]
        else:
            token = _invert(probabilities, row, uniforms[alive, step])
        tokens[alive, step] = token
        logprobs[alive, step] = distribution[row, token]
        squares[alive, step] = torch.linalg.vecdot(probabilities, probabilities)[row]
        ended = token == decoder.end
        finished[alive[ended]], lengths[alive[ended]] = True, step + 1
        going = ~ended
        alive = alive[going]
        if step + 1 == max_new_tokens or not len(alive):
            break
        vocabulary = distribution.shape[-1]
        prefixes, row = (row[going] * vocabulary + token[going]).unique(return_inverse=True)
        decoder.split(prefixes // vocabulary)
        logits = decoder.write(prefixes % vocabulary)
    # After the end |pi|^2 and pi_a are still 1, which adds 0. Rounding may leave a certain token a little below 0.
    norms = (1 + squares - 2 * logprobs.exp()).clamp(min=0).sum(-1).tolist()
    written = zip(tokens.tolist(), logprobs.numpy(), lengths.tolist(), finished.tolist(), norms, strict=True)
    return [Completion(tuple(ids[:size]), values[:size].copy(), end, norm) for ids, values, size, end, norm in written]


def _invert(probabilities: torch.Tensor, row: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token [N] at which the cumulative distribution of each rollout's row passes its uniform number [N]."""
    cumulative = probabilities.cumsum(-1)[row]
    passed = cumulative <= (uniform * cumulative[:, -1])[:, None]
    return passed.sum(-1).clamp(max=probabilities.shape[-1] - 1)


class LedgerSampler:
    """Samples and verifies ledger prompts: ``sampler(prompts, counts)`` gives ``counts[q]`` rollouts of ``prompts[q]``.

    ``reward`` "exact" is 1 for a right completion and 0 for any other; "share" is graded, the share of leading running
    digits that are right, and comes without a verdict. With None nothing is verified: rollouts carry their answers.

    It remembers its random generator and how much it has sampled (``rollouts``, and ``tokens`` with the end tokens);
    ``state_dict`` holds both. The policy is read at each call, so it may be trained in between. A prompt whose ``data``
    is not a ``Problem`` is parsed from its text.

    >>> from apportion.lab.policy import new_policy
    >>> sampler = LedgerSampler(new_policy(0), seed=1)
    >>> [[rollout]] = sampler([Problem(7, ("+3",)).prompt()], [1])
    >>> rollout.correct, sampler.rollouts
    (False, 1)
    """

    def __init__(
        self,
        policy: Qwen2ForCausalLM,
        seed: int = 0,
        temperature: float = 1.0,
        max_new_tokens: int = MAX_NEW_TOKENS,
        max_rows: int = MAX_ROWS,
        tokenizer: PreTrainedTokenizerFast | None = None,
        reward: Reward | None = "exact",
    ) -> None:
        if reward is not None and reward not in get_args(Reward):
            raise ValueError(
                f"reward must be one of {', '.join(get_args(Reward))}, got {reward!r}; share is the graded one"
            )
        self.policy, self.tokenizer = policy, tokenizer or ledger_tokenizer()
        self.generator = torch.Generator().manual_seed(seed)
        self.temperature, self.max_new_tokens, self.max_rows = temperature, max_new_tokens, max_rows
        self.reward = reward
        self.rollouts = self.tokens = 0

    def __call__(self, prompts: Sequence[Prompt], counts: ArrayLike) -> list[list[Rollout]]:
        """Rollouts with reward, length and score norm, one list a prompt; their ``completion`` is a ``Completion``."""
        problems = [
            prompt.data if isinstance(prompt.data, Problem) else Problem.parse(prompt.text) for prompt in prompts
        ]
        texts = self.tokenizer([prompt.text for prompt in prompts])["input_ids"] if problems else []
        completions = sample(
            self.policy, texts, counts, self.generator, self.temperature, self.max_new_tokens, self.max_rows
        )
        self.rollouts += sum(map(len, completions))
        self.tokens += sum(len(completion.tokens) for group in completions for completion in group)
        return [_rewarded(problem, group, self.reward) for problem, group in zip(problems, completions, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The random state and the counters."""
        return {"generator": self.generator.get_state(), "rollouts": self.rollouts, "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken."""
        self.generator.set_state(state["generator"])
        self.rollouts, self.tokens = state["rollouts"], state["tokens"]


def leading_share(problem: Problem, answer: str | None) -> float:
    """Share of an answer's leading running digits that are right: 1.0 for a right answer and no other, 0.0 for None.

    It is taken of the digits written or of those wanted, whichever are more, and from the solution that gives most.

    >>> problem = Problem(7, ("+3", "*7", "-4"))
    >>> [leading_share(problem, answer) for answer in ("006", "005", "01", "0060", "106", None)]
    [1.0, 0.6666666666666666, 0.3333333333333333, 0.75, 0.0, 0.0]
    """
    if answer is None:
        return 0.0
    wanted = [solution[1::2] for solution in problem.solutions]
    return max(sum(takewhile(bool, map(eq, answer, digits))) / max(len(answer), len(digits)) for digits in wanted)


def _rewarded(problem: Problem, completions: list[Completion], reward: Reward | None) -> list[Rollout]:
    """Rollouts of one problem; what was written several times is verified once."""
    verdicts = {tokens: _verdict(problem, tokens, reward) for tokens in {written.tokens for written in completions}}
    rollouts = []
    for completion in completions:
        correct, answer, score = verdicts[completion.tokens]
        length = len(completion.tokens)
        rollouts.append(Rollout(correct, answer, score, completion, tokens=length, score_norm=completion.score_norm))
    return rollouts


def _verdict(
    problem: Problem, tokens: tuple[int, ...], reward: Reward | None
) -> tuple[bool | None, str | None, float | None]:
    """Whether it is right (None where rewards are graded), the answer, and the reward; of both None if unverified."""
    answer, correct = verify(problem, tokens)
    if reward is None:
        return None, answer, None
    return (None, answer, leading_share(problem, answer)) if reward == "share" else (correct, answer, float(correct))
