"""Measures combinations of decisions in the lab: which prompts, how many rollouts, what baseline, reuse, tokens.

Learning rates are those that the sweep of benchmarks/methods.py chose: 2e-3 for Reinforce-Ada, 1e-3 for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from apportion.allocators import AR3PO, HORA, VIP, Even
from apportion.predictors import MeanLengths
from benchmarks.evidence.learning import FIVE, HARD, Rule, Settings, learn_seeds

TOKENS = 96_000
"""The length of a run under a token budget: about what 12,800 rollouts take."""
TOKENS_PER_PROMPT = 61
"""What 8 rollouts of a problem take on average, between 3 and 11 tokens each."""
MOST = 24
"""The most rollouts of a prompt under every rule that moves rollouts between prompts."""


class ReusingVIP(VIP):
    """VIP's counts with AR3PO's reuse: a group without a correct response takes one of an earlier step."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "_reuse", AR3PO(stages=1))

    def groups(self, batch):
        return self._reuse.groups(batch)

    def metrics(self, batch):
        return self._reuse.metrics(batch)

    def observe(self, batch):
        super().observe(batch)
        self._reuse.observe(batch)


def of_tokens(rule, **settings):
    """Return a rule with a budget in tokens."""
    lengths = MeanLengths(initial=8)  # new for each run, because it learns
    return rule(tokens_per_prompt=TOKENS_PER_PROMPT, lengths=lengths, high=MOST, **settings)


UNIFORM = {"name": "uniform", "rollouts_per_prompt": 8}
SINGLE = {"name": "uniform", "rollouts_per_prompt": 1}
EIGHT = {"rollouts_per_prompt": 8, "high": MOST}
VIPS = {"name": "vip", **EIGHT}
COUNTS = {"name": "neyman", "estimator": "reinforce", "low": 1, "predictor": "empirical_bayes", **EIGHT}
"""VIP's belief with the variance of a baseline that is fixed beforehand: S / n, from one rollout on."""
WEIGHTS = {"selection": "spo"}
OPTIMAL = {"estimator": "reinforce", "baseline": "optimal"}
SINGLES = {"prompts_per_step": 32}
LONG = {"rollouts": None, "tokens": TOKENS}
ARMS: Mapping[str, tuple[Rule, Settings]] = {
    # Which prompts (weights of SPO) x how many (VIP's belief) x what baseline (optimal), at 8 rollouts a prompt.
    "vip": (VIPS, {}),
    "weights": (UNIFORM, WEIGHTS),
    "weights_vip": (VIPS, WEIGHTS),
    "optimal": (UNIFORM, OPTIMAL),
    "vip_optimal": (COUNTS, OPTIMAL),
    "weights_optimal": (UNIFORM, OPTIMAL | WEIGHTS),
    "weights_vip_optimal": (COUNTS, OPTIMAL | WEIGHTS),
    # Single rollouts.
    "single_optimal": (SINGLE, SINGLES | OPTIMAL),
    "single_optimal_retire": (SINGLE, SINGLES | OPTIMAL | {"selection": "retire"}),
    "single_batch": (SINGLE, SINGLES | {"estimator": "batch_optimal"}),
    "single_batch_mixed": (
        SINGLE,
        SINGLES | {"estimator": "batch_optimal", "selection": {"name": "mixed", "group_size": 4}},
    ),
    # Reuse of correct responses.
    "reuse": ({"name": "ar3po", "stages": 1, "rollouts_per_stage": 8}, {}),
    "vip_reuse": (partial(ReusingVIP, **EIGHT), {}),
    # A budget of tokens.
    "tokens_uniform": (UNIFORM, LONG),
    "tokens_even": (partial(of_tokens, Even), LONG),
    "tokens_vip_rollouts": (VIPS, LONG),
    "tokens_vip": (partial(of_tokens, VIP), LONG),
    "tokens_hora": (partial(of_tokens, HORA, pre_rollouts=4), LONG),
    # Rules that stop by outcomes, under estimators that are biased by it and one that is not.
    **{
        f"{name}_by_{estimator}": (rule, {"estimator": estimator, "learning_rate": rate})
        for name, rule, rate in (
            ("ar3po", {"name": "ar3po", "reuse": "none"}, HARD["learning_rate"]),
            ("hora", {"name": "hora", "pre_rollouts": 4, **EIGHT}, HARD["learning_rate"]),
            ("reinforce_ada", {"name": "reinforce_ada", "down_sample": False}, 2e-3),
        )
        for estimator in ("rloo", "sequential")
    },
}


def arm(name, **changed):
    """Return what every seed of an arm reached."""
    rule, settings = ARMS[name]
    training = {key: value for key, value in {**HARD, **settings, **changed}.items() if value is not None}
    return learn_seeds(rule, training, FIVE, measure=over_tokens)


def over_tokens(_, run):
    """Return the area of a run over its tokens."""
    return {"area_of_tokens": run.area_to(min(TOKENS, float(run.tokens[-1])))}
