"""Tests of copies of a Llama that train side by side, against transformers and torch."""

import pytest
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


def test_each_copy_gives_the_log_probabilities_of_the_whole_texts():
    found = StackedLlama(make_llama(), 2, EXAMPLES).logprobs(PROMPTS, SAMPLED)
    for copy in range(2):
        for row in range(2):
            torch.testing.assert_close(found[copy, row][MASK[copy, row]], whole(make_llama(), copy, row))
    assert (found[~MASK] == 0).all()


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


def test_samples_follow_the_policy_and_stop_at_an_end():
    stack, ends = StackedLlama(make_llama(), 2, EXAMPLES), [2, 7]
    uniforms = torch.rand(2, 2, 6, generator=torch.Generator().manual_seed(0))
    found = stack.sample(PROMPTS, uniforms, ends)
    torch.testing.assert_close(found.logprobs * found.mask, stack.logprobs(PROMPTS, found))
    for tokens, mask in zip(found.tokens.flatten(0, 1).tolist(), found.mask.flatten(0, 1).tolist(), strict=True):
        assert mask == [place == 0 or not set(tokens[:place]) & set(ends) for place in range(len(tokens))]


def test_frequencies_and_entropies_are_those_of_the_next_token():
    stack, rows = StackedLlama(make_llama(), 1, EXAMPLES), 4000
    uniforms = torch.rand(1, rows, 1, generator=torch.Generator().manual_seed(0))
    found = stack.sample([[PROMPTS[0][0]] * rows], uniforms, [0])
    chances = make_llama()(input_ids=torch.tensor([[*EXAMPLES, *PROMPTS[0][0]]])).logits[0, -1].softmax(-1).detach()
    seen = torch.bincount(found.tokens.flatten(), minlength=11) / rows
    assert (seen - chances).abs().max() < 4 * (0.25 / rows) ** 0.5
    assert found.entropy[0, 0, 0].item() == pytest.approx(
        torch.distributions.Categorical(chances).entropy().item(),
        rel=1e-5,  # float32
    )


def test_a_copy_does_not_depend_on_the_others():
    uniforms = torch.rand(2, 2, 4, generator=torch.Generator().manual_seed(0))
    both, alone = StackedLlama(make_llama(), 2, EXAMPLES), StackedLlama(make_llama(), 1, EXAMPLES)
    first = both.sample(PROMPTS, uniforms, [2])
    own = alone.sample(PROMPTS[1:], uniforms[1:], [2])
    shortest = min(first.tokens.shape[-1], own.tokens.shape[-1])
    assert (first.tokens * first.mask)[1, :, :shortest].tolist() == (own.tokens * own.mask)[0, :, :shortest].tolist()
