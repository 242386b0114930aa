"""``whole_groups=True``: reward functions see each finished group once and whole, whatever the number of rounds."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from apportion import DAPO, HORA, VIP, Uniform
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, FailedRewards
from apportion.trl.failures import RewardsFailedError
from tests.cases import refuse_lines
from tests.trl.tiny import TOKENIZER, Call, Judge, allocated_by, assert_rows, mark, whole_groups


@dataclass
class Comparison:
    """A reward function of whole groups: the share of a prompt's other completions that sort below this one.

    It records each call in ``rounds``, as ``Judge`` does, and gives None to completions for which ``none`` is true.
    """

    none: object = None
    rounds: list = field(default_factory=list)
    __name__ = "comparison"

    def __call__(self, prompts, completions, completion_ids, k, log_extra, log_metric, **rest):
        assert len(set(prompts)) == 1 and len(prompts) == len(completions) == len(completion_ids) == len(k)
        assert TOKENIZER.batch_decode(completion_ids, skip_special_tokens=True) == completions
        log_extra("text", list(completions))
        scores = [sum(other < each for other in completions) / max(len(completions) - 1, 1) for each in completions]
        log_metric("best", max(scores))
        if self.none is not None:
            scores = [None if self.none(each) else score for each, score in zip(completions, scores, strict=True)]
        rows = zip(prompts, completions, completion_ids, scores, strict=True)
        self.rounds.append([Call(prompt, text, tuple(ids), score) for prompt, text, ids, score in rows])
        return scores


@pytest.mark.parametrize(("trainer", "rule"), [(AllocatedGRPOTrainer, VIP), (AllocatedRLOOTrainer, Uniform)])
def test_a_function_is_called_once_for_each_group_of_one_round(run, trainer, rule):
    built, watch, history = run(trainer, judge=Comparison(), allocator=rule(), whole_groups=True)
    assert len(watch.steps) == 3
    for step, logged in zip(watch.steps, history, strict=True):
        assert len(step.rounds) == len(step.by_prompt) == 4
        assert_rows(step.rows, whole_groups(built, step))
        mean = pytest.approx(sum(call.score for call in step.calls) / 32)
        assert logged["rewards/comparison/mean"] == mean == logged["reward"]
        assert logged["best"] == pytest.approx(sum(max(each.score for each in calls) for calls in step.rounds) / 4)
    assert not built._logs["extra"] and not built._pending_metrics


def test_the_verdict_scores_rounds_and_the_other_function_groups(run, tmp_path):
    comparison, allocator = Comparison(), DAPO(rollouts_per_prompt=3, draw=2, max_draws=4)
    given = {"others": [comparison], "verdict": "judge", "whole_groups": True, "rollout_log": tmp_path / "log"}
    _, watch, _ = run(config={"reward_weights": [0.5, 1.0]}, allocator=allocator, **given)
    assert sum(len(step.rounds) for step in watch.steps) > 3
    sampled, seen, rewards = defaultdict(list), defaultdict(list), defaultdict(list)
    for call in [call for step in watch.steps for call in step.calls]:
        sampled[call.prompt].append(call)
    for call in [call for calls in comparison.rounds for call in calls]:
        seen[call.prompt].append(call)
    for row in read_log(tmp_path / "log").to_pylist():
        assert row["correct"] is not None
        rewards[row["prompt"]].append(row["reward"])
    assert seen.keys() == sampled.keys() == rewards.keys()
    for prompt, own in sampled.items():
        assert [call.text for call in seen[prompt]] == [call.text for call in own]
        pairs = zip(own, seen[prompt], strict=True)
        assert rewards[prompt] == pytest.approx([right.score + 0.5 * other.score for right, other in pairs])


def test_completions_without_a_reward_leave_their_group_and_a_dead_function_ends_the_run(run):
    given = {"allocator": VIP(), "whole_groups": True}
    _, watch, history = run(judge=Comparison(none=lambda text: text[:1] in "048c"), **given)
    for step, logged in zip(watch.steps, history, strict=True):
        missing = sum(call.score is None for call in step.calls)
        assert missing == logged["allocation/failed"] > 0 and logged["allocation/rows"] == 32 - missing
    dead = Comparison(none=lambda text: True)
    with pytest.raises(RewardsFailedError, match="comparison returned None") as caught:
        run(judge=dead, **given)
    assert f"for the prompt {dead.rounds[-1][0].prompt!r}" in str(caught.value)
    # the verdict is a reward
    run(others=[dead], verdict="judge", allocator=HORA(), whole_groups=True, failed_rewards="abort")


def test_a_group_is_called_again_as_a_whole(run):
    """The function gives None to some in its first call, and scores others among all of the group in the second."""
    comparison = Comparison(none=lambda text: not comparison.rounds and text[:1] in "048c")
    given = {"allocator": VIP(), "whole_groups": True, "failed_rewards": FailedRewards(retries=1, wait=0.0)}
    _, watch, (logged,) = run(judge=comparison, config={"max_steps": 1}, **given)
    first, second, *others = watch.steps[0].rounds
    assert logged["allocation/failed"] == 0 and len(others) == 3
    assert [call.text for call in first] == [call.text for call in second] and None in [call.score for call in first]
    scores = [call.score for calls in (second, *others) for call in calls]
    assert watch.steps[0].table["comparison"] == pytest.approx(scores)


def test_what_cannot_see_whole_groups_is_refused(make):
    def construct(text, **given):
        given |= allocated_by(text) | {"whole_groups": True}
        make(AllocatedGRPOTrainer, policy="no/such-model", **given)

    refuse_lines(
        construct,
        """
        allocator = "hora" => needs a verdict and another reward function with hora
        allocator = "hora", verdict = "judge" => got verdict 'judge' and 1 in all; name
        allocator = "ttrl" => whole_groups must be False with ttrl, whose rewards come from votes, got
        """,
    )
    with pytest.raises(
        ValueError, match=r"must be False with an environment_factory, whose environments end with their"
    ):
        construct("", environment_factory=dict)


def test_a_few_failed_verdicts_end_no_run(run):
    """They are a tenth of all, though all that fail in a round are known before any group is scored."""

    def verifier(completions, k, **columns):
        rows = enumerate(zip(completions, k, strict=True))
        return [None if i % 10 == 0 else mark(text, each) for i, (text, each) in rows]

    config = {"per_device_train_batch_size": 96, "max_steps": 1}
    given = {"others": [verifier], "judge": Judge(name="style"), "verdict": "verifier", "whole_groups": True}
    _, _, (logged,) = run(config=config, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8, high=16), **given)
    assert 32 < logged["allocation/failed"] < 48 and logged["allocation/rollouts"] == 384
