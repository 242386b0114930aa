"""Sequential RLOO: unbiased where earlier rewards decide how many rollouts come next, as in AR3PO or HORA.

1. Given everything before a round, the number of rollouts that the round draws for a prompt is fixed.
2. A baseline made of earlier rounds and of the *other* rollouts of the round is independent of the rollout's own
   score h_i, given that past; so each rollout has E[(r_i - b_i) h_i | past] = grad p.
3. Hence a round adds its count times grad p, and by the tower rule (Wald's identity) a prompt adds E[n_q] grad p_q.
4. So the sum over rollouts is unbiased for sum_q E[n_q] grad p_q: use the weighting "rollout", not "prompt".
5. Dividing by the realised n_q brings the bias back, since it depends on the very rewards. So, by O(1 / P), does the
   batch's realised N in a mean over rollouts; where the total is fixed, as in HORA, N is a constant and does no harm.

The first rollout of a group, where its round draws no other, has no baseline: it gets 0 and does not count in n_q.
Dropping groups for their outcomes, such as those without a success, biases the sum whatever the estimator.
"""

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.group_relative import rloo
from apportion.advantages.grouping import column, flat
from apportion.types import Floats


def sequential(rewards: ArrayLike, group_ids: ArrayLike, *, rounds: ArrayLike) -> Floats:
    """Return r - mean of the *other* rewards of its group up to its own round, [N]. ``rounds`` [N] are from 0.

    In one round it is ``rloo``. Later rewards never touch an earlier advantage, which is what keeps it unbiased.

    >>> sequential([0, 0, 1, 0], [5, 5, 5, 5], rounds=[0, 0, 1, 1]).round(3).tolist()
    [0.0, 0.0, 1.0, -0.333]
    """
    rewards, ids = flat(rewards, group_ids)
    drawn = column("rounds", rounds, rewards)
    advantages = np.zeros(rewards.shape)
    for current in np.unique(drawn):
        so_far, new = drawn <= current, drawn == current
        advantages[new] = rloo(rewards[so_far], ids[so_far])[new[so_far]]
    return advantages
