"""TRL's GRPO and RLOO trainers, and any subclass of them, with an allocator: they take one more argument.

    from apportion import HORA
    from apportion.trl import AllocatedGRPOTrainer

    trainer = AllocatedGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=HORA())

``allocated`` gives an allocator to a trainer of your own. Under ``Uniform`` a run equals that of TRL to the last bit.

TRL's users asked for this in its issues 3708, 3973 and 4764.
"""

from typing import Any

from torch import Tensor
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from apportion.trl.advantages import Grouped, grpo, rloo, weighted_rewards
from apportion.trl.bases import around, trl_class
from apportion.trl.overrides import AllocatedTrainer
from apportion.trl.settings import LOSSES


class _AllocatedGRPO(AllocatedTrainer):
    """What is particular to GRPO: its config, its stock trainer, and a KL penalty in the loss."""

    _config, _stock = GRPOConfig, GRPOTrainer
    _reward_beta = 0.0
    """Factor of the KL penalty in rewards: 0, because GRPO has it in the loss."""

    def _advantages(self, grouped: Grouped) -> Tensor:
        return grpo(grouped, self.scale_rewards, self.multi_objective_aggregation)

    def _components(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Return the scores [N, C] that are normalised one by one; C is 0 if their sum is, as by our estimators."""
        one_by_one = self.multi_objective_aggregation == "normalize_then_sum" and self.allocation.estimator is None
        return scores[:, weights != 0] if one_by_one else scores[:, :0]


class _AllocatedRLOO(AllocatedTrainer):
    """What is particular to RLOO: its KL penalty is subtracted from the rewards."""

    _config, _stock = RLOOConfig, RLOOTrainer

    @property
    def _reward_beta(self) -> float:
        return self.beta

    def _advantages(self, grouped: Grouped) -> Tensor:
        return rloo(grouped, self.normalize_advantages)

    def _components(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Return the clipped rewards [N, 1]; [N, 0] if nothing clips them, as with our estimators."""
        if not self.reward_clip_range or self.allocation.estimator is not None:
            return scores[:, :0]
        return weighted_rewards(scores, weights).clamp(*self.reward_clip_range).unsqueeze(1)


def allocated(base: type[Any], *, loss: str | None = None) -> type[Any]:
    """Return a subclass of ``base`` with an allocator. ``base`` is TRL's GRPO or RLOO trainer, or a subclass of one.

    Its constructor takes the arguments of ``base``, and those of ``TRLAllocation`` by name. ``num_generations`` is the
    average number of completions per prompt: a generation batch has ``generation_batch_size / num_generations``
    prompts. The constructor raises ValueError if settings cannot work.

    ``loss`` is for a ``base`` with a loss of its own: the ``loss_type`` of TRL that has the same sums and means. Such a
    loss must give nothing for a row whose ``completion_mask`` is 0.

    Raises TypeError for another class and for one that has an allocator. A trainer whose methods do not call TRL's is
    refused with ValueError at the first step.
    """
    own = trl_class(base)
    if issubclass(base, AllocatedTrainer):
        raise TypeError(
            f"base must be a trainer without an allocator, got {base.__name__}, which has one; use it as is"
        )
    if loss is not None and loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}; name the one that divides alike")
    mixin = _AllocatedGRPO if "GRPO" in own.__name__ else _AllocatedRLOO
    description = f"``{base.__name__}`` with an allocator; see ``apportion.trl.allocated``."
    attributes = {"__doc__": description, "__module__": __name__, "_own_loss": loss}
    return type(f"Allocated{base.__name__}", (mixin, *around(base, own, loss)), attributes)


AllocatedGRPOTrainer = allocated(GRPOTrainer)
AllocatedRLOOTrainer = allocated(RLOOTrainer)
