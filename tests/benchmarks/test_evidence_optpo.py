"""The parts of OptPO's measurements that could be wrong unseen."""

import numpy as np
import pytest

from apportion import Prompt, Rollout, collect
from apportion.advantages import rloo
from apportion.allocators import OptPO
from benchmarks.evidence.optpo_combined_measured import M, N, _gradient, _group, _sequential
from benchmarks.evidence.optpo_learning_measured import TiesKept


def test_a_tie_at_the_maximum_is_decided_for_the_first_answer_and_trained_on():
    def sampler(prompts, counts):
        return [[Rollout(answer=answer) for answer in ("b", "a") * (int(counts[0]) // 2)]]

    for kind, groups, answer in ((OptPO, 0, None), (TiesKept, 1, "b")):
        allocator = kind(min_samples=4, max_samples=8)
        batch = collect(allocator, [Prompt("6 x 7?")], sampler)
        assert int(batch.asked[0]) == 8
        assert allocator.labels(batch)[0].answer == answer
        assert len(allocator.groups(batch)) == groups


def test_group_gradients_are_rloo_and_sequential_ones_need_no_stop():
    rng = np.random.default_rng(0)
    q = np.array([0.4, 0.3, 0.2, 0.05, 0.03, 0.02])
    codes, labels = rng.choice(6, size=(5, M), p=q), np.arange(5) % 2
    _, mine = _group(codes, np.full(5, M), labels, q)
    rewards = (codes == labels[:, None]).astype(float)
    by_hand = np.stack([rloo(each, np.zeros(M, int)) for each in rewards])
    assert mine == pytest.approx(_gradient(by_hand, codes, q) / M)
    _, one_wave = _sequential(codes[:, :N], np.full(5, N), labels, q)
    assert one_wave == pytest.approx(_group(codes[:, :N], np.full(5, N), labels, q)[1])
