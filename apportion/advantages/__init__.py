"""Advantages: from flat rewards [N] and group ids [N] to advantages [N]. Groups may be ragged.

================================ ============================= =========== =======================================
estimator                        advantage                     needs       expectation, over n rollouts of a prompt
================================ ============================= =========== =======================================
``dr_grpo``                      r - mean                                  (n - 1) / n of the gradient
``grpo``                         (r - mean) / deviation                    hard and easy prompts weigh more
``rloo``                         r - mean of the others                    the gradient, if counts ignore outcomes
``sequential``                   r - mean of the others so far rounds      the gradient times n, whatever decides n
``group_optimal``                r - norm-weighted mean of the score_norms the gradient, if counts ignore outcomes
                                 others
``batch_optimal``                r - norm-weighted mean of the score_norms the gradient times n, if the counts of
                                 other prompts                             others ignore this prompt's outcomes
``opo``                          r - length-weighted mean      tokens      that of dr_grpo at equal lengths, else
                                                                           biased by how lengths depend on r
``reinforce``                    r - baseline                  baseline    the gradient times n, whatever decides n
``spo``                          (r - baseline - batch mean)   baseline    nearly a multiple of the gradient
                                 / deviation
``maxrl``                        (r - mean) / mean                         that of log p, expanded to order n - 1
``sft``                          r / mean                                  that of log p, expanded to order n
``reinforce_plus_plus``          (r - batch mean) / deviation  tokens      nearly a multiple of the gradient
``reinforce_plus_plus_baseline`` (r - mean) / batch deviation  tokens      nearly a multiple of dr_grpo's
================================ ============================= =========== =======================================

A group of one and a group of equal rewards get exactly 0 from ``grpo``, ``dr_grpo``, ``rloo``, ``sequential``,
``group_optimal``, ``opo``, ``maxrl`` and ``reinforce_plus_plus_baseline``, which have nothing to compare them with.
``gae`` needs a critic, works per token, and has a signature of its own.
"""

import inspect
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.agreement import check_agreement, check_weighting, default_weighting
from apportion.advantages.gae import gae
from apportion.advantages.group_relative import dr_grpo, grpo, rloo
from apportion.advantages.grouping import Reduction, Weighting, loss_weights, prompt_weights, rollout_weights
from apportion.advantages.maximum_likelihood import maxrl, sft
from apportion.advantages.outcome_gate import OutcomeGate, gated
from apportion.advantages.reinforce import reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline, spo, whiten
from apportion.advantages.sequential import sequential
from apportion.advantages.weighted_means import batch_optimal, group_optimal, opo
from apportion.allocators import Allocator
from apportion.checks import check_choice, number_array
from apportion.predictors.score_norms import score_norm
from apportion.types import Floats, Group, Needs

Estimator = Callable[..., Floats]
"""(rewards [N], group_ids [N], *, further columns [N]) -> advantages [N]."""

ESTIMATORS: dict[str, Estimator] = {
    estimator.__name__: estimator
    for estimator in (
        grpo,
        dr_grpo,
        rloo,
        sequential,
        group_optimal,
        batch_optimal,
        opo,
        reinforce,
        spo,
        maxrl,
        sft,
        reinforce_plus_plus,
        reinforce_plus_plus_baseline,
    )
}


ACROSS_GROUPS = ("batch_optimal", "reinforce", "spo", "sft", "reinforce_plus_plus")
"""Estimators that give a group of equal rewards an advantage. The others compare a rollout with its own group alone."""


def needs(name: str) -> tuple[str, ...]:
    """Return the columns [N] that an estimator takes besides rewards and group ids: its keyword-only parameters.

    >>> needs("rloo"), needs("reinforce")
    ((), ('baseline',))
    """
    check_choice("estimator", name, ESTIMATORS)
    parameters = inspect.signature(ESTIMATORS[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)


def rollout_needs(estimator: str | None) -> Needs:
    """Return what an estimator needs to know of each rollout; nothing if it is an engine's own, or None.

    >>> rollout_needs("batch_optimal") == Needs(score_norms=True), rollout_needs("gae") == Needs()
    (True, True)
    """
    columns = needs(estimator) if estimator in ESTIMATORS else ()
    return Needs(score_norms="score_norms" in columns, tokens="tokens" in columns)


def check_baseline(estimator: str | None, baseline: object) -> None:
    """Raise ValueError unless a ``baseline`` other than None is given exactly if the estimator takes one."""
    takes = estimator in ESTIMATORS and "baseline" in needs(estimator)
    if takes != (baseline is not None):
        raise ValueError(
            f"a baseline goes with the estimators 'reinforce' and 'spo', got {baseline} with {estimator!r}; set both, "
            "or neither"
        )


def check_compared(allocator: Allocator, estimator: str) -> None:
    """Raise ValueError if ``estimator`` compares the rollouts of a prompt, but ``allocator`` gives each prompt one."""
    try:
        most = allocator.size(1).asked
    except ValueError:  # its budget is meant for several prompts
        return
    if most == 1 and estimator in ESTIMATORS and estimator not in ACROSS_GROUPS:
        raise ValueError(
            f"a prompt must have at least 2 rollouts for {estimator}, which compares them, got 1 by {allocator.name}, "
            f"so that every advantage would be 0; give it more, or take one of {', '.join(ACROSS_GROUPS)}"
        )


def advantages_of(groups: Sequence[Group], estimator: str = "rloo", *, baseline: ArrayLike | None = None) -> Floats:
    """Return the advantages [N] of all rollouts of the groups, in order, including those outside ``keep``.

    ``baseline`` [groups] is one number a group, fixed before the rollouts, for estimators that take one. Other columns
    come from ``Rollout.tokens``, ``Rollout.round`` and ``Rollout.score_norm``. Raises ValueError for an unknown
    estimator, for a rollout without a length or norm that is needed, and for a baseline that is missing or would not be
    read.

    >>> from apportion import Prompt, Rollout
    >>> group = Group(Prompt("1 + 1 ="), (Rollout(True), Rollout(False), Rollout(False)))
    >>> advantages_of([group]).tolist(), advantages_of([group], "reinforce", baseline=[0.25]).tolist()
    ([1.0, -0.5, -0.5], [0.75, -0.25, -0.25])
    """
    wanted = needs(estimator)
    if (baseline is not None) != ("baseline" in wanted):
        raise ValueError(
            f"estimator {estimator!r} {'needs a' if baseline is None else 'takes no'} baseline, got {baseline!r}; "
            f"{'pass one number a group, fixed before its rollouts' if baseline is None else 'leave it out'}"
        )
    sizes = [len(group.rollouts) for group in groups]
    rewards = np.concatenate([np.zeros(0), *(group.rewards for group in groups)])
    columns: dict[str, ArrayLike] = {}
    if baseline is not None:
        values = number_array("baseline", baseline)
        if values.shape != (len(groups),):
            raise ValueError(
                f"baseline must be [{len(groups)}], one number a group, got {values.shape}; it is not one a rollout"
            )
        columns["baseline"] = np.repeat(values, sizes)
    if "tokens" in wanted:
        columns["tokens"] = [_length(group, i, estimator) for group in groups for i in range(len(group.rollouts))]
    if "rounds" in wanted:
        columns["rounds"] = [rollout.round for group in groups for rollout in group.rollouts]
    if "score_norms" in wanted:
        columns["score_norms"] = [
            score_norm(rollout, group.prompt, estimator) for group in groups for rollout in group.rollouts
        ]
    return ESTIMATORS[estimator](rewards, np.repeat(np.arange(len(groups)), sizes), **columns)


def _length(group: Group, i: int, estimator: str) -> int:
    tokens = group.rollouts[i].tokens
    if tokens is None:
        raise ValueError(
            f"estimator {estimator!r} needs the length of every completion, got none for rollout {i} of prompt "
            f"{group.prompt.text!r}; set Rollout.tokens"
        )
    return tokens


__all__ = [
    "ESTIMATORS",
    "Estimator",
    "OutcomeGate",
    "Reduction",
    "Weighting",
    "advantages_of",
    "batch_optimal",
    "check_agreement",
    "check_baseline",
    "check_weighting",
    "default_weighting",
    "dr_grpo",
    "gae",
    "gated",
    "group_optimal",
    "grpo",
    "loss_weights",
    "maxrl",
    "needs",
    "opo",
    "prompt_weights",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rollout_needs",
    "rollout_weights",
    "sequential",
    "sft",
    "spo",
    "whiten",
]
