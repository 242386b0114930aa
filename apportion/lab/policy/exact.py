"""Exact success probabilities, without sampling, because the right completions of a problem can be listed."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import entr
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2ForCausalLM

from apportion.lab.policy.decoder import Decoder
from apportion.lab.world.task import EOS, Problem, encode
from apportion.types import Floats

MAX_PROBLEMS = 64


def exact_success(policy: Qwen2ForCausalLM, problems: Sequence[Problem]) -> Floats:
    """Return the exact success probability [P] at temperature 1: the sum over right completions with their end tokens.

    The mean over a pool is a learning curve without evaluation noise. A completion that is cut off before its end token
    is wrong, so allow ``2 k + 1`` new tokens for k operations.
    """
    return np.array([found.sum() for found in solution_probabilities(policy, problems)], np.float64)


@torch.no_grad()
def solution_probabilities(policy: Qwen2ForCausalLM, problems: Sequence[Problem]) -> list[Floats]:
    """Return the exact probability of each of a problem's ``solutions`` with its end token, [S] for each problem.

    The temperature is 1. ``MAX_PROBLEMS`` of similar length are computed at once.
    """
    found: dict[int, Floats] = {}
    order = sorted(range(len(problems)), key=lambda q: len(problems[q].operations))
    for first in range(0, len(order), MAX_PROBLEMS):
        block = order[first : first + MAX_PROBLEMS]
        found |= zip(block, _block_probabilities(policy, [problems[q] for q in block]), strict=True)
    return [found[q] for q in range(len(problems))]


def effective_solutions(probabilities: Sequence[Floats]) -> Floats:
    """Return how many right completions the policy effectively uses [P]: the exponential of an entropy.

    The entropy is over the right completions, given that one of them is written. The result is 1 if one of them has all
    the probability, and their number if all are equally likely, at any success.

    >>> effective_solutions([np.array([0.1, 0.1]), np.array([0.3])])
    array([2., 1.])
    """
    least = np.finfo(np.float64).tiny  # a collapsed policy may give every solution 0
    return np.array([np.exp(entr(found / max(found.sum(), least)).sum()) for found in probabilities])


def _block_probabilities(policy: Qwen2ForCausalLM, problems: Sequence[Problem]) -> list[Floats]:
    """Return ``solution_probabilities`` of some problems. A common prefix of solutions is computed once."""
    prompts = [encode(problem.text) for problem in problems]
    solutions = [[(*encode(solution), EOS) for solution in problem.solutions] for problem in problems]
    counts = [len(found) for found in solutions]
    written = [torch.tensor(tokens) for found in solutions for tokens in found]
    tokens, lengths = pad_sequence(written, batch_first=True), torch.tensor(list(map(len, written)))
    alive, rows = torch.arange(len(written)), torch.arange(len(problems)).repeat_interleave(torch.tensor(counts))
    logprobs = torch.zeros(len(written), dtype=torch.float64)
    decoder = Decoder(policy, max(map(len, prompts)), tokens.shape[1])
    logits = decoder.read(prompts)
    for step, column in enumerate(tokens.T):
        logprobs[alive] += logits.log_softmax(-1)[rows, column[alive]].double()
        going = lengths[alive] > step + 1
        alive = alive[going]
        if not len(alive):
            break
        logits, rows = decoder.write(rows[going], column[alive])
    return np.split(logprobs.exp().numpy(), np.cumsum(counts)[:-1])
