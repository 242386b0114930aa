"""Small settings for every registered allocator, found from its fields, so that a new rule is tested as it is."""

from dataclasses import fields, replace
from functools import partial

from apportion.allocators import ALLOCATORS, Allocator
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.config import build
from apportion.predictors import MeanLengths


def small_settings(name, rollouts=6, **own):
    """Return settings for the rule ``name``, about ``rollouts`` a prompt, as a table that ``config.build`` reads.

    A rule without a setting of that name leaves it out, except for settings in ``own``. Predictors that need embeddings
    or score norms are replaced by counts, because samplers of tests have neither.
    """
    by_field = {
        "rollouts_per_prompt": rollouts,
        "samples_per_prompt": rollouts,
        "high": 2 * rollouts + 4,
        "pre_rollouts": 2,
        "stages": 2,
        "rollouts_per_stage": rollouts // 2,
        "rollouts_per_round": rollouts // 2,
        "rounds": 2,
        "pilots": rollouts // 2,
        "commits": rollouts,
        "max_rounds": 4,
        "draw": 4,
        "max_draws": 4,
        "min_samples": 4,
        "max_samples": 2 * rollouts,
        "exceedances": 2,
        "wave": 4,
    }
    exceptions = {
        "reinforce_ada": {"rounds": 4},  # so that some prompts exit and others do not
        "ttrl": {"max_samples": rollouts},  # it takes all of them
        "optpo": {"max_samples": 2 * rollouts + 4, "wave": 6},  # waves that do not divide what is left
        "shared_votes": {"max_samples": 2 * rollouts + 4},
    }
    found = {field.name: field for field in fields(ALLOCATORS[name]) if field.init}
    chosen = {key: value for key, value in (by_field | exceptions.get(name, {})).items() if key in found}
    if "predictor" in found:
        predictor = found["predictor"].default_factory()
        if predictor.reads_texts or predictor.needs.score_norms:
            chosen["predictor"] = "counts"
    return {"name": name} | chosen | own


def small(name, rollouts=6, **own):
    """Return the rule ``name`` with ``small_settings``."""
    return build(Allocator, small_settings(name, rollouts, **own))


MAKE = {name: partial(small, name) for name in ALLOCATORS}
"""A maker of each registered allocator, by name."""

IN_TOKENS = tuple(sorted(name for name, rule in ALLOCATORS.items() if issubclass(rule, BudgetedAllocator)))
"""Rules that can spend tokens instead of rollouts: the contract covers them with both budgets."""


def in_tokens(allocator):
    """Return the same rule with a budget of 360 tokens a prompt."""
    lengths = MeanLengths(initial=60)
    return replace(allocator, rollouts_per_prompt=None, budget=None, tokens_per_prompt=360, lengths=lengths)
