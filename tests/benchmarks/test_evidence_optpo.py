"""The rule of OptPO's measurements that keeps ties."""

from apportion import Prompt, Rollout, collect
from apportion.allocators import OptPO
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
