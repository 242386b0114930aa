"""Advantages: flat rewards [N] and group ids [N] in, advantages [N] out; groups may be ragged.

================================ ============================= ======== ==========================================
estimator                        advantage                     needs    expectation, over n rollouts of a prompt
================================ ============================= ======== ==========================================
``dr_grpo``                      r - mean                               (n - 1) / n of the gradient
``grpo``                         (r - mean) / deviation                 hard and easy prompts weigh more
``rloo``                         r - mean of the others                 the gradient, where counts ignore outcomes
``sequential``                   r - mean of the others so far rounds   the gradient times n, whatever decides n
``reinforce``                    r - baseline                  baseline the gradient times n, whatever decides n
``maxrl``                        (r - mean) / mean                      that of log p, expanded to order n - 1
``sft``                          r / mean                               that of log p, expanded to order n
``reinforce_plus_plus``          (r - batch mean) / deviation  tokens   nearly a multiple of the gradient
``reinforce_plus_plus_baseline`` (r - mean) / batch deviation  tokens   nearly a multiple of dr_grpo's
================================ ============================= ======== ==========================================

Under those in ``GROUP_RELATIVE`` a group of one, and a group of equal rewards, gets exactly 0: it has nothing to
compare with. ``gae`` is the estimator with a critic, per token and with a signature of its own.
"""

from __future__ import annotations

from apportion.advantages.gae import gae
from apportion.advantages.group_relative import dr_grpo, grpo, rloo
from apportion.advantages.maximum_likelihood import maxrl, sft
from apportion.advantages.registry import ESTIMATORS, GROUP_RELATIVE, Estimator, advantages_of, needs
from apportion.advantages.reinforce import reinforce
from apportion.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from apportion.advantages.sequential import sequential
from apportion.advantages.weights import Weighting, prompt_weights, rollout_weights
from apportion.advantages.whitening import whiten

__all__ = [
    "ESTIMATORS",
    "GROUP_RELATIVE",
    "Estimator",
    "Weighting",
    "advantages_of",
    "dr_grpo",
    "gae",
    "grpo",
    "maxrl",
    "needs",
    "prompt_weights",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rollout_weights",
    "sequential",
    "sft",
    "whiten",
]
