"""Whether a rule can differ from uniform is found by computing, for every rule, budget and size of a batch."""

import time
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from apportion import HORA, VIP, Plan, Prompt, Rollout
from apportion.allocators import ALLOCATORS, Allocator, equal_counts, equal_counts_because, warn_of_equal_counts
from apportion.config import build
from apportion.predictors import MeanLengths, UniformPrior
from tests.builders import make_prompts
from tests.cases import check_all, lines, settings_of

ALWAYS, FIRST = "whatever their outcomes", "until prompts come again, because nothing tells unseen ones apart"


def reason(settings, prompts=64, budget=8, **given):
    return equal_counts_because(build(Allocator, settings).with_budget(budget), prompts, **given)


SETTLED = """
    name = "vip", rollouts_per_prompt = 3               => 3
    name = "vip", high = 8                              => 8
    name = "vip", budget = 192                          => 3
    name = "vip", predictor = "uniform"                 => 8
    name = "vip", predictor = "uniform", rollouts_per_prompt = 7.5 => 7 or 8
    name = "hora", pre_rollouts = 8                     => 8
    name = "knapsack", low = 8                          => 8
    name = "inverse_accuracy", low = 8                  => 8
    name = "inverse_variance", high = 8                 => 8
    name = "neyman", high = 8                           => 8
    name = "dars", high = 8                             => 8
    name = "dars", pre_rollouts = 1                     => 1
    name = "ar3po", stages = 1, reuse = "none"          => 4
    name = "reinforce_ada", rounds = 1, keep = 8        => 8
    name = "reinforce_ada", keep = 32                   => 32
    name = "voting", min_samples = 64                   => 64
    name = "voting", rule = "fixed", curtail = false    => 64
    name = "optpo", min_samples = 64                    => 64
    name = "shared_votes", samples_per_prompt = 16      => 16
"""


def test_settings_that_leave_nothing_to_decide():
    def check(text, rollouts):
        settings = settings_of(text)
        assert reason(settings) == f"{settings['name']} gives every prompt {rollouts} rollouts, {ALWAYS}"

    check_all(check, lines(SETTLED))


def splits(hora, prompts):
    """Return the distinct counts of ``hora`` over all outcomes of the pre-rollouts of ``prompts`` prompts."""
    start = hora.start(make_prompts(prompts))
    first = hora.plan(start)
    found = set()
    for right in product(range(int(first.counts[0]) + 1), repeat=prompts):
        rollouts = [[Rollout(place < own) for place in range(first.counts[0])] for own in right]
        batch = start.add(first, rollouts)
        found |= set((batch.asked + hora.plan(batch).counts).tolist())
    return found


@pytest.mark.parametrize("rollouts", [2, 4, 5, 7])
def test_hora_at_every_budget_agrees_with_all_outcomes_of_four_prompts(rollouts):
    hora = HORA(rollouts_per_prompt=rollouts)
    assert (equal_counts_because(hora, 64) != "") == (len(splits(hora, 4)) == 1)


@pytest.mark.parametrize("name", sorted({"vip", "knapsack", "inverse_accuracy", "inverse_variance", "neyman"}))
def test_a_rule_that_splits_by_beliefs_alone_is_uniform_before_a_second_visit(name):
    assert reason({"name": name}) == f"{name} gives every prompt 8 rollouts {FIRST}"


def test_what_tells_unseen_prompts_apart():
    assert reason({"name": "vip"}, 1).endswith(" rollouts, because a batch has one prompt")
    assert reason({"name": "vip"}, rated=True) == ""
    assert reason({"name": "vip", "predictor": "counts"}, rated=True).endswith(FIRST)
    assert reason({"name": "vip", "predictor": "gp"}) == ""
    assert reason({"name": "vip", "predictor": "gp", "rollouts_per_prompt": 3}).endswith(ALWAYS)


def test_lengths_of_completions_tell_prompts_apart_from_the_second_visit_on():
    tokens = {"tokens_per_prompt": 800, "lengths": MeanLengths(initial=100)}
    assert equal_counts_because(VIP(**tokens), 64).endswith(FIRST)
    assert equal_counts_because(VIP(**tokens, predictor=UniformPrior()), 64).endswith(FIRST)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_rule_at_its_defaults_differs_or_says_from_when_on(name):
    for size in (2, 4, 128):
        found = reason({"name": name}, size)
        assert found == "" or found.endswith(FIRST)


def test_the_rule_is_as_it_was(tmp_path):
    rule = build(Allocator, {"name": "ar3po", "stages": 1})
    before = rule.state_dict()
    assert equal_counts_because(rule, 64).endswith(FIRST)  # then a response that is reused takes the place of one
    assert rule.state_dict() == before
    assert np.array_equal(rule.plan(rule.start([Prompt("a")])).counts, [4])


def test_the_log_names_a_remedy(caplog):
    warn_of_equal_counts(HORA(rollouts_per_prompt=4), 8)
    warn_of_equal_counts(VIP(), 8)
    warn_of_equal_counts(HORA(), 8)
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        "raise its budget or change its bounds, or use uniform",
        "known success rates, or a predictor that reads texts, would tell them apart",
    ]


def test_a_budget_of_a_batch_is_judged_by_stand_ins_however_many_prompts_share_it():
    started = time.process_time()
    assert equal_counts_because(VIP(budget=3 * 1_000_000), 1_000_000).endswith(ALWAYS)
    assert equal_counts_because(VIP(budget=3 * 1_000_000 + 1), 1_000_000).endswith(FIRST)  # one prompt gets one more
    assert equal_counts_because(HORA(budget=8 * 1_000_000), 1_000_000) == ""
    assert time.process_time() - started < 5


@dataclass(frozen=True)
class Reading(Allocator):
    """A user's rule that reads what its prompts carry, or takes its time."""

    seconds: float = 0.0

    name = "reading"

    def plan(self, batch):
        time.sleep(self.seconds)
        return Plan([4 if self.seconds else prompt.data["rollouts"] - asked for prompt, asked in self.open(batch)])

    def open(self, batch):
        return zip(batch.prompts, batch.asked.tolist(), strict=True)


def test_a_users_rule_that_cannot_plan_for_stand_ins_starts_all_the_same(caplog):
    warn_of_equal_counts(Reading(), 8)
    assert not caplog.records
    with pytest.raises(TypeError, match="NoneType"):
        equal_counts_because(Reading(), 8)


def test_a_users_rule_that_never_ends_or_is_slow_is_given_up(monkeypatch):
    monkeypatch.setattr(equal_counts, "MOST_SECONDS", 0.05)
    started = time.monotonic()
    assert equal_counts_because(Reading(seconds=0.02), 8) == ""
    assert time.monotonic() - started < 5
