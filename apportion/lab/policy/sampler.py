"""The sampler: rollouts of many prompts with their log-probabilities. Each prefix is computed once.

Rollouts with the same tokens after the same prompt share one row of the batch. So a prompt is read once for all its
rollouts, a row splits when its rollouts differ, and a row is dropped when all its rollouts have ended. Every rollout
draws with its own uniform numbers, so the distribution is exactly that of independent sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from transformers import Qwen2ForCausalLM

from apportion.lab.policy.decoder import Decoder
from apportion.lab.world.task import Problem, Reward, encode, verify
from apportion.predictors.saved import SavedValues
from apportion.types import Prompt, Rollout

MAX_ROWS = 256  # their cache fits into that of the processor
MAX_NEW_TOKENS = 14


@dataclass(frozen=True, slots=True, eq=False)
class LedgerCompletion:
    """A completion: token ids [T], their log-probabilities [T] when sampled, and whether it is finished.

    ``tokens`` ends with the end token if it is ``finished``; otherwise it was cut off. ``logprobs`` (float32) are those
    of the sampled distribution with its temperature. Greedy completions have those at temperature 1.

    ``score_norm`` is the squared norm of the gradient of their sum with respect to the logits of that distribution
    (over the temperature): the sum over tokens a of |e_a - pi|^2 = 1 - 2 pi_a + |pi|^2. None if it was not recorded.
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
) -> list[list[LedgerCompletion]]:
    """Return ``counts[q]`` completions of ``prompts[q]`` (token ids), one list for each prompt.

    Temperature 0 is greedy. Rollouts run in chunks of at most ``MAX_ROWS``, with prompts of similar length together.
    The random numbers of each rollout are drawn beforehand, so chunks change the speed but not the samples (up to
    rounding).
    """
    counts = np.asarray(counts, np.int64)
    owners = np.repeat(np.arange(len(prompts)), counts)
    uniforms = torch.rand(len(owners), max_new_tokens, generator=generator) if temperature > 0 else None
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    order = np.argsort(lengths[owners], kind="stable")
    decoder = Decoder(policy, int(lengths.max(initial=0)), max_new_tokens)
    groups: list[list[Any]] = [[None] * int(count) for count in counts]
    first_of = np.cumsum(counts) - counts
    for first in range(0, len(order), MAX_ROWS):
        chunk = order[first : first + MAX_ROWS]
        read, rows = np.unique(owners[chunk], return_inverse=True)
        draws = None if uniforms is None else uniforms[torch.from_numpy(chunk)]
        written = _grow(decoder, [prompts[q] for q in read], rows, draws, temperature)
        for rollout, owner, completion in zip(chunk, owners[chunk], written, strict=True):
            groups[owner][rollout - first_of[owner]] = completion
    return groups


def _grow(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    owners: NDArray[np.int64],
    uniforms: torch.Tensor | None,
    temperature: float,
) -> list[LedgerCompletion]:
    """Return a completion of each of the ``owners`` [N] among ``prompts``. ``uniforms`` are [N, new tokens]."""
    number, most = len(owners), decoder.max_new_tokens
    alive, rows = torch.arange(number), torch.from_numpy(owners)
    tokens = torch.zeros(number, most, dtype=torch.long)
    logprobs, squares = torch.zeros(number, most), torch.ones(number, most)
    lengths, finished = torch.full((number,), most), torch.zeros(number, dtype=torch.bool)
    logits = decoder.read(prompts)
    for step in range(most):
        distribution = (logits / (temperature or 1.0)).log_softmax(-1)
        probabilities = distribution.exp()
        if uniforms is None:
            token = distribution.argmax(-1)[rows]
        else:
            # The token at which the cumulative distribution of a rollout's row passes its uniform number.
            cumulative = probabilities.cumsum(-1)[rows]
            whole = cumulative[:, -1:]
            passed = (cumulative <= uniforms[alive, step, None] * whole) & (cumulative < whole)
            token = passed.sum(-1)
        tokens[alive, step] = token
        logprobs[alive, step] = distribution[rows, token]
        squares[alive, step] = torch.linalg.vecdot(probabilities, probabilities)[rows]
        ended = token == decoder.end
        finished[alive[ended]], lengths[alive[ended]] = True, step + 1
        alive = alive[~ended]
        if step + 1 == most or not len(alive):
            break
        logits, rows = decoder.write(rows[~ended], token[~ended])
    # After the end |pi|^2 and pi_a are 1, which adds 0. Rounding may leave a certain token a little below 0.
    norms = (1 + squares - 2 * logprobs.exp()).clamp(min=0).sum(-1).tolist()
    written = zip(tokens.tolist(), logprobs.numpy(), lengths.tolist(), finished.tolist(), norms, strict=True)
    return [LedgerCompletion(tuple(ids[:n]), values[:n].copy(), end, norm) for ids, values, n, end, norm in written]


class LedgerSampler:
    """Samples and verifies ledger prompts: ``sampler(prompts, counts)`` gives ``counts[q]`` rollouts of ``prompts[q]``.

    ``reward`` "exact" is 1 for a right completion and 0 for any other. "share" is graded: the share of leading running
    digits that are right, without a verdict. With None nothing is verified, and rollouts only have answers. Beside
    "exact", ``length_weight`` times the share of the allowed tokens that were written is added to the reward, and
    ``format_weight`` if the completion states an answer. The verdict stays.

    The sampler remembers its random generator and how many ``rollouts`` and ``tokens`` (with end tokens) it has
    sampled; ``state_dict`` holds them. The policy is read at each call, so it may be trained in between. A prompt whose
    ``data`` is not a ``Problem`` is parsed from its text.

    >>> from apportion.lab.policy.network import new_policy
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
        reward: Reward | None = "exact",
        length_weight: float = 0.0,
        format_weight: float = 0.0,
    ) -> None:
        self.length_weight, self.format_weight = length_weight, format_weight
        self.policy, self.generator = policy, torch.Generator().manual_seed(seed)
        self.temperature, self.max_new_tokens, self.reward = temperature, max_new_tokens, reward
        self.rollouts = self.tokens = 0

    def __call__(self, prompts: Sequence[Prompt], counts: ArrayLike) -> list[list[Rollout]]:
        """Return rollouts with reward, length and score norm, one list a prompt; each holds a ``LedgerCompletion``."""
        problems = [each.data if isinstance(each.data, Problem) else Problem.parse(each.text) for each in prompts]
        read = [encode(prompt.text) for prompt in prompts]
        completions = sample(self.policy, read, counts, self.generator, self.temperature, self.max_new_tokens)
        self.rollouts += sum(map(len, completions))
        self.tokens += sum(len(completion.tokens) for group in completions for completion in group)
        return [self._reward(problem, group) for problem, group in zip(problems, completions, strict=True)]

    def _reward(self, problem: Problem, completions: list[LedgerCompletion]) -> list[Rollout]:
        """Return the rollouts of one problem. Equal completions are verified once. Only "exact" gives a verdict."""
        verdicts: dict[tuple[int, ...], tuple[bool | None, str | None, float | None]] = {}
        for tokens in {written.tokens for written in completions}:
            answer, correct = verify(problem, tokens)
            if self.reward == "exact":
                shaping = self.length_weight * len(tokens) / self.max_new_tokens
                shaping += self.format_weight * (answer is not None)
                verdicts[tokens] = (correct, answer, correct + shaping)
            else:
                verdicts[tokens] = (None, answer, leading_share(problem, answer) if self.reward == "share" else None)
        return [
            Rollout(
                *verdicts[each.tokens],
                each,
                tokens=len(each.tokens),
                score_norm=each.score_norm,
                truncated=not each.finished,
            )
            for each in completions
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the random state and the counters."""
        return {"generator": self.generator.get_state(), "rollouts": self.rollouts, "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken. Raise ValueError for anything else."""
        saved = SavedValues(state, "the sampler", ["generator", "rollouts", "tokens"])
        rollouts, tokens, generator = saved.count("rollouts"), saved.count("tokens"), saved.values["generator"]
        try:
            self.generator.set_state(generator)
        except (RuntimeError, TypeError) as error:
            raise saved.refusal("generator", "the state of a random generator") from error
        self.rollouts, self.tokens = rollouts, tokens


def leading_share(problem: Problem, answer: str | None) -> float:
    """Return the share of an answer's leading digits that are right: 1.0 only for a right answer, 0.0 for None.

    The denominator is the number of written or of wanted digits, whichever is larger. The best solution counts.

    >>> problem = Problem(7, ("+3", "*7", "-4"))
    >>> [leading_share(problem, answer) for answer in ("006", "005", "01", "0060", "106", None)]
    [1.0, 0.6666666666666666, 0.3333333333333333, 0.75, 0.0, 0.0]
    """
    if answer is None:
        return 0.0
    shares = (
        sum(takewhile(bool, map(eq, answer, digits))) / max(len(answer), len(digits)) for digits in problem.answers
    )
    return max(shares)
