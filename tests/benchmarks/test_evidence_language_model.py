"""Tests of the claims on a real language model, without its weights: shared examples, statistics and verdicts."""

import torch

from benchmarks.evidence.language_model_policy import share_examples
from tests.benchmarks.llama import make_llama

EXAMPLES, ROWS = [3, 1, 4, 1, 5], [[9, 2, 6, 5], [3, 5]]


def test_shared_examples_give_the_outputs_and_gradients_of_the_whole_texts():
    plain, shared = make_llama(), make_llama()
    share_examples(shared, EXAMPLES)
    padded = torch.tensor([ROWS[0], [0, 0, *ROWS[1]]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    found = shared(input_ids=padded, attention_mask=mask).logits
    wanted = [plain(input_ids=torch.tensor([EXAMPLES + row])).logits[0, len(EXAMPLES) :] for row in ROWS]
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, 2:], wanted[1])
    (found[0].logsumexp(-1).sum() + found[1, 2:].square().sum()).backward()
    (wanted[0].logsumexp(-1).sum() + wanted[1].square().sum()).backward()
    for mine, theirs in zip(shared.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)
