"""A rule takes an engine's number of rollouts as its budget, unless its own settings give one."""

from dataclasses import fields

import pytest

from apportion import DAPO, HORA, VIP, Even, Uniform
from apportion.allocators import ALLOCATORS
from apportion.predictors import MeanLengths
from tests.builders import make_prompts

OPEN = [name for name, rule in ALLOCATORS.items() if "rollouts_per_prompt" in {field.name for field in fields(rule)}]


def test_an_open_budget_is_the_engines_and_a_given_one_stays():
    for name in OPEN:
        rule = ALLOCATORS[name]()
        bound = rule.with_budget(6)
        assert bound == ALLOCATORS[name](rollouts_per_prompt=6) and rule == ALLOCATORS[name]()
        assert bound.size(4).kept == 24 and bound.with_budget(9) is bound
        assert getattr(bound, "predictor", None) is getattr(rule, "predictor", None)
    own = [ALLOCATORS[name]() for name in ALLOCATORS.keys() - set(OPEN)]
    given = [HORA(budget=64), VIP(tokens_per_prompt=900, lengths=MeanLengths(initial=100))]
    assert all(rule.with_budget(8) is rule for rule in own + given)


def test_without_an_engine_there_is_a_default():
    for rule, each in ((Uniform(), 8), (Even(), 8), (VIP(), 8), (HORA(), 16), (DAPO(), 16)):
        assert rule.size(2).kept == 2 * each and rule.plan(rule.start(make_prompts(2))).counts.sum() <= 2 * each
    # HORA's pre-rollouts are half of the engine's number
    assert HORA().with_budget(8).plan(HORA().with_budget(8).start(make_prompts(2))).counts.tolist() == [4, 4]


def test_bounds_of_an_open_budget_are_checked_when_it_is_known():
    vip = VIP(low=10)
    assert vip.with_budget(12).size(2).asked == 24
    message = "rollouts_per_prompt must be between 10 and 64, got 8"
    for refused in (lambda: vip.with_budget(8), lambda: vip.start(make_prompts(2)), lambda: vip.size(2)):
        with pytest.raises(ValueError, match=message):
            refused()


class Tagged:
    """Gives a rule a constructor of its own, as a user's subclass may have."""

    def __init__(self, tag):
        super().__init__()
        object.__setattr__(self, "tag", tag)


@pytest.mark.parametrize("rule", [DAPO, VIP])
def test_a_subclass_with_a_constructor_of_its_own_takes_the_budget_of_the_engine(rule):
    tagged = type("Own", (Tagged, rule), {})("a tag")
    given = tagged.with_budget(6)
    assert (given.rollouts_per_prompt, given.tag, type(given)) == (6, "a tag", type(tagged))
    assert tagged.rollouts_per_prompt is None and given.size(4).asked == rule().with_budget(6).size(4).asked
    with pytest.raises(ValueError, match="rollouts_per_prompt must be"):
        tagged.with_budget(0)
