import pytest
import torch

from apportion.lab.policy.network import completion_logprobs, new_policy
from apportion.lab.world.task import EOS, encode

PROMPTS = [encode("7 a+3 ="), encode("1 a+3 b*7 c-4 ="), encode("0 a*9 b-2 =")]
COMPLETIONS = [[*encode("a0"), EOS], [*encode("a4b8c4"), EOS], encode("a0")]


def one_at_a_time(policy, prompt, completion, temperature=1.0):
    """Return the log-probabilities of one completion by one unpadded forward pass per token."""
    logprobs = []
    for step, token in enumerate(completion):
        logits = policy(torch.tensor([[*prompt, *completion[:step]]])).logits[0, -1]
        logprobs.append(torch.log_softmax(logits / temperature, -1)[token])
    return torch.stack(logprobs)


def test_a_seed_fixes_the_policy_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second, other = (torch.cat([p.flatten() for p in new_policy(seed).parameters()]) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert len(first) == 200_640


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ragged_rows_equal_one_pass_a_token(small_base, temperature):
    logprobs, mask = completion_logprobs(small_base, PROMPTS, COMPLETIONS, temperature)
    assert logprobs.shape == mask.shape == (3, 7)
    assert mask.sum(1).tolist() == [3, 7, 2]
    assert (logprobs[~mask] == 0).all()
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        expected = one_at_a_time(small_base, prompt, completion, temperature)
        torch.testing.assert_close(logprobs[row, : len(completion)], expected, atol=1e-5, rtol=0)


def test_no_rows_and_empty_completions_are_empty():
    policy = new_policy(0)
    for rows in (0, 2):
        logprobs, mask = completion_logprobs(policy, PROMPTS[:rows], [[]] * rows)
        assert logprobs.shape == mask.shape == (rows, 0)
    logprobs, mask = completion_logprobs(policy, PROMPTS[:2], [[], [EOS]])
    assert mask.tolist() == [[False], [True]] and logprobs[0, 0] == 0
