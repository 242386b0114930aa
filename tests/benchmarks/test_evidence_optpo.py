"""The rules behind the verdicts on OptPO, and the parts of its measurements that could be wrong unseen."""

import numpy as np
import pytest

from apportion import Prompt, Rollout, collect
from apportion.advantages import rloo
from apportion.allocators import OptPO
from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.claim import Verdict
from benchmarks.evidence.optpo import comparable, judge_most, judge_paper_table, paper_pairs, parsed, several
from benchmarks.evidence.optpo_combined_measured import M, N, _gradient, _group, _sequential
from benchmarks.evidence.optpo_learning_measured import TiesKept


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.0, 0.02, Verdict.HOLDS),
        (-0.01, 0.015, Verdict.HOLDS),
        (0.0, 0.04, Verdict.OPEN),
        (-0.02, 0.015, Verdict.OPEN),
        (-0.06, 0.02, Verdict.FAILS),
        (0.1, None, Verdict.OPEN),
    ],
)
def test_a_claim_of_no_loss_needs_an_interval_that_excludes_the_margin(mean, half, verdict):
    assert comparable(SeedInterval(mean, half)) is verdict


def test_a_claim_on_several_settings_fails_only_if_it_holds_in_none():
    assert several([Verdict.HOLDS, Verdict.FAILS]) is Verdict.CONDITIONS
    assert several([Verdict.OPEN, Verdict.FAILS]) is Verdict.FAILS
    assert several([Verdict.OPEN, Verdict.OPEN]) is Verdict.OPEN


def test_intervals_are_read_as_the_tables_write_them():
    for found in (SeedInterval(0.025, 0.042), SeedInterval(-0.35, 0.019)):
        assert parsed(found.signed) == found
        assert parsed(found.percent) == found


def test_the_papers_table_was_copied_whole():
    pairs = paper_pairs()
    assert pairs.shape == (36, 5)
    assert pairs[2].tolist() == [72.3, 72.3, 90.6, 90.8, 32.57]
    assert pairs[35].tolist() == [33.0, 33.0, 85.3, 84.3, 45.47]
    assert "78.36%" in judge_most({}).ours
    assert "of 36" in judge_paper_table({}).ours


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
