"""GRPO, Dr. GRPO and RLOO: each rollout is compared with the rest of its group."""

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.grouping import centred
from apportion.types import Floats


def grpo(rewards: ArrayLike, group_ids: ArrayLike, epsilon: float = 1e-4) -> Floats:
    """Return (r - mean) / (standard deviation + epsilon) within each group, [N].

    The deviation is the sample one (n - 1), as in TRL and verl; epsilon is TRL's, verl has 1e-6. Reference: Shao et al.
    2024, arXiv 2402.03300, section 4.1.2.

    >>> grpo([1, 0, 1, 1], [0, 0, 1, 1]).round(3).tolist()
    [0.707, -0.707, 0.0, 0.0]
    """
    group, sizes, differences = centred(rewards, group_ids)
    variance = np.bincount(group, differences**2) / np.maximum(sizes - 1, 1)
    return differences / (np.sqrt(variance)[group] + epsilon)


def dr_grpo(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Return r - mean within each group, [N]: GRPO without the division. Reference: Liu et al. 2025, arXiv 2503.20783.

    >>> dr_grpo([1, 0, 0, 0, 1], [0, 0, 0, 0, 1]).tolist()
    [0.75, -0.25, -0.25, -0.25, 0.0]
    """
    return centred(rewards, group_ids)[2]


def rloo(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Return r - mean of the *other* rewards of its group, [N]. Reference: Ahmadian et al. 2024, arXiv 2402.14740.

    >>> rloo([1, 0, 0, 1], [7, 7, 7, 3]).tolist()
    [1.0, -0.5, -0.5, 0.0]
    """
    group, sizes, differences = centred(rewards, group_ids)
    return differences * (sizes / np.maximum(sizes - 1, 1))[group]
