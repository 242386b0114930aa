"""The updates of OptPO's paper as data, and how it samples: settings for real models, to be handed to a trainer.

One step an instance: of policy gradient under GRPO, PPO (a critic and GAE) or REINFORCE++, with KL to the reference; or
of AdamW towards the pseudo-label (TTSFT, OptPO-SFT), without.

Reference: Wang et al. 2025, "OptPO", arXiv 2512.02882, Section 4.1; for models of 1 to 8 billion parameters.

Note: the tiny policies of ``apportion.lab`` want rates that are hundreds of times higher, and have their own defaults.
Note: of SFT the paper gives the optimiser and the rate alone; here it has no KL.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """How a policy is updated: ``estimator`` is one of ``apportion.advantages.ESTIMATORS``, or "gae", with a critic.

    ``kl`` is the coefficient of the divergence from the reference.

    >>> UPDATES["ppo"]
    Update(estimator='gae', learning_rate=1e-06, critic_learning_rate=1e-05, kl=0.001)
    """

    estimator: str
    learning_rate: float
    critic_learning_rate: float | None = None
    kl: float = 0.0


@dataclass(frozen=True)
class Sampling:
    """How rollouts are sampled: ``top_p`` is the mass of nucleus sampling."""

    temperature: float
    top_p: float


UPDATES: dict[str, Update] = {
    "grpo": Update("grpo", learning_rate=1e-6, kl=0.001),
    "ppo": Update("gae", learning_rate=1e-6, critic_learning_rate=1e-5, kl=0.001),
    "reinforce_plus_plus": Update("reinforce_plus_plus", learning_rate=1e-6, kl=0.001),
    "sft": Update("sft", learning_rate=2e-5),
}
"""The paper's updates by name."""

SAMPLING = Sampling(temperature=0.6, top_p=0.95)
"""The paper's sampling."""
