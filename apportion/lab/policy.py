"""The policy: a tiny Qwen2, log-probabilities of given completions, and the exact success probability of a problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Config, Qwen2ForCausalLM

from apportion.lab.decoder import Decoder
from apportion.lab.task import EOS, PAD, VOCABULARY, Problem, encode

MAX_ROWS = 1024
MAX_PROBLEMS = 64


def new_policy(seed: int) -> Qwen2ForCausalLM:
    """An untrained policy of 200,640 parameters, equal for equal seeds; the global random state is left as it was.

    Weights start at a standard deviation of 0.1: at the usual 0.02 a model of this width stays at chance.

    >>> sum(parameter.numel() for parameter in new_policy(0).parameters())
    200640
    """
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


def completion_logprobs(
    policy: Qwen2ForCausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
    max_rows: int = MAX_ROWS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Teacher-forced log-probability of each completion token, [N, T] float32, and the mask [N, T] of those that exist.

    ``prompts`` and ``completions`` are token ids, row by row; T is the longest completion; outside the mask all is 0.
    Differentiable. Rows are padded on the right, so causal attention needs no mask and positions start at 0 in every
    row; there is one forward pass for each ``max_rows`` rows. ``temperature`` divides the logits, as the sampler does.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"one completion a prompt row, got {len(completions)} for {len(prompts)}; repeat the prompts")
    if not all(map(len, prompts)):
        raise ValueError("a prompt must have at least one token, got an empty one; the first token needs a context")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}; use 1.0 for greedy completions")
    width = max(map(len, completions), default=0)
    if width == 0:
        return torch.zeros(len(prompts), 0), torch.zeros(len(prompts), 0, dtype=torch.bool)
    blocks = [
        _block_logprobs(policy, prompts[i : i + max_rows], completions[i : i + max_rows], width, temperature)
        for i in range(0, len(prompts), max_rows)
    ]
    logprobs, masks = zip(*blocks, strict=True)
    return torch.cat(logprobs), torch.cat(masks)


def completion_distributions(
    policy: Qwen2ForCausalLM, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [N, T, V] of every token where each completion token stands, and the mask [N, T].

    At temperature 1, in one forward pass.
    """
    tokens, places, mask = packed(prompts, completions)
    return _distributions(policy, tokens, places), mask


def _block_logprobs(
    policy: Qwen2ForCausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    width: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward pass; see ``completion_logprobs``."""
    tokens, places, mask = packed(prompts, completions, width)
    distributions = _distributions(policy, tokens, places, temperature)
    logprobs = distributions.gather(-1, tokens.gather(1, places)[:, :, None])[:, :, 0]
    return logprobs.masked_fill(~mask, 0.0), mask


def _distributions(
    policy: Qwen2ForCausalLM, tokens: torch.Tensor, places: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities [N, T, V] of what stands at ``places`` [N, T] of the rows ``tokens`` [N, L]."""
    logits = policy(input_ids=tokens[:, :-1], use_cache=False).logits
    chosen = logits.gather(1, (places - 1)[:, :, None].expand(-1, -1, logits.shape[-1]))
    return (chosen / temperature).log_softmax(-1)


def packed(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], width: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of prompt and completion, padded on the right: token ids [N, L], and where the completions stand.

    Of each completion token its place [N, T] in the row, and the mask [N, T] of those that exist; T is the longest
    completion, or ``width`` if that is more. What is predicted of the token at place i stands at i - 1.
    """
    rows = [(*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)]
    length = max(map(len, rows))
    tokens = torch.tensor([(*row, *(PAD,) * (length - len(row))) for row in rows])
    lengths = torch.tensor([len(completion) for completion in completions])[:, None]
    starts = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    steps = torch.arange(max(width, int(lengths.max())))
    return tokens, (starts + steps).clamp(max=length - 1), steps < lengths


def exact_success(
    policy: Qwen2ForCausalLM, problems: Sequence[Problem], max_rows: int = MAX_PROBLEMS
) -> NDArray[np.float64]:
    """Exact success probability [P] at temperature 1: that of the right completions together, end tokens included.

    No sampling is involved, so the mean over a pool is a learning curve without evaluation noise, and ``p`` an oracle.
    (A completion that is cut off before its end token is wrong: allow ``2 k + 1`` new tokens for k operations.)
    """
    return np.array([found.sum() for found in solution_probabilities(policy, problems, max_rows)], np.float64)


@torch.no_grad()
def solution_probabilities(
    policy: Qwen2ForCausalLM, problems: Sequence[Problem], max_rows: int = MAX_PROBLEMS
) -> list[NDArray[np.float64]]:
    """Exact probability at temperature 1 of each of a problem's ``solutions``, end token included; [S] a problem.

    ``max_rows`` problems, of like length, are computed at once.
    """
    found: list[NDArray[np.float64]] = [np.empty(0)] * len(problems)
    order = sorted(range(len(problems)), key=lambda q: len(problems[q].operations))
    for first in range(0, len(order), max_rows):
        block = order[first : first + max_rows]
        for q, probabilities in zip(block, _block_probabilities(policy, [problems[q] for q in block]), strict=True):
            found[q] = probabilities
    return found


def effective_solutions(probabilities: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """How many right completions the policy effectively uses [P]: the exponential of the entropy of its choice.

    The choice is among the right completions, given that it writes one of them: 1 where one has it all, their number
    where all are as likely, however low the success.

    >>> effective_solutions([np.array([0.1, 0.1]), np.array([0.3])])
    array([2., 1.])
    """
    least = np.finfo(np.float64).tiny  # a collapsed policy may give every solution 0
    return np.array([np.exp(entr(found / max(found.sum(), least)).sum()) for found in probabilities])


def _block_probabilities(policy: Qwen2ForCausalLM, problems: Sequence[Problem]) -> list[NDArray[np.float64]]:
    """See ``solution_probabilities``. What solutions begin with in common is one row, as in the sampler."""
    prompts = [encode(problem.text) for problem in problems]
    solutions = [[(*encode(solution), EOS) for solution in problem.solutions] for problem in problems]
    counts = [len(found) for found in solutions]
    written = [torch.tensor(tokens) for found in solutions for tokens in found]
    tokens, lengths = pad_sequence(written, batch_first=True), torch.tensor(list(map(len, written)))
    alive, row = torch.arange(len(written)), torch.arange(len(problems)).repeat_interleave(torch.tensor(counts))
    logprobs = torch.zeros(len(written), dtype=torch.float64)
    decoder = Decoder(policy, max(map(len, prompts)), tokens.shape[1])
    logits = decoder.read(prompts)
    for step, column in enumerate(tokens.T):
        logprobs[alive] += logits.log_softmax(-1)[row, column[alive]].double()
        going = lengths[alive] > step + 1
        alive = alive[going]
        if not len(alive):
            break
        vocabulary = logits.shape[-1]
        prefixes, row = (row[going] * vocabulary + column[alive]).unique(return_inverse=True)
        decoder.split(prefixes // vocabulary)
        logits = decoder.write(prefixes % vocabulary)
    return np.split(logprobs.exp().numpy(), np.cumsum(counts)[:-1])
