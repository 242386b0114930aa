"""Tests of copies of a Llama that train side by side, against transformers and torch."""

import torch

from benchmarks.stacked_llama import Sampled, StackedLlama
from tests.benchmarks.llama import make_llama

EXAMPLES = [3, 1, 4, 1, 5]
PROMPTS = [[[9, 2, 6], [5]], [[3, 5, 8], [9, 7]]]
TOKENS = torch.tensor([[[1, 2, 3], [4, 0, 0]], [[5, 6, 0], [7, 8, 9]]])
MASK = torch.tensor([[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [1, 1, 1]]], dtype=torch.bool)
SAMPLED = Sampled(TOKENS, MASK, torch.zeros(2, 2, 3), torch.zeros(2, 2, 3))
ADVANTAGES = torch.tensor([[1.0, -0.5], [0.25, 2.0]])


def whole(plain, copy, row):
    """Return the log-probabilities of a row's tokens by transformers, from the whole text."""
    tokens = TOKENS[copy, row][MASK[copy, row]].tolist()
    text = [*EXAMPLES, *PROMPTS[copy][row], *tokens]
    logits = plain(input_ids=torch.tensor([text])).logits[0, -len(tokens) - 1 : -1].log_softmax(-1)
    return logits[torch.arange(len(tokens)), torch.tensor(tokens)]


def test_each_copy_takes_the_steps_of_torchs_adam_with_its_own_rate():
    stack, rates = StackedLlama(make_llama(), 2, EXAMPLES), (1e-2, 3e-3)
    for _ in range(3):
        stack.step(-(ADVANTAGES * stack.logprobs(PROMPTS, SAMPLED).sum(-1)).sum(), rates)
    for copy, rate in enumerate(rates):
        plain = make_llama()
        adam = torch.optim.AdamW(plain.parameters(), lr=rate, weight_decay=0.0)
        for _ in range(3):
            adam.zero_grad()
            (-sum(ADVANTAGES[copy, row] * whole(plain, copy, row).sum() for row in range(2))).backward()
            adam.step()
        for mine, theirs in zip(stack.weights.values(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine[copy], theirs, atol=2e-4, rtol=2e-3)
