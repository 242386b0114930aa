"""Which trainers can have an allocator, and what they must leave to TRL.

An allocator runs ``_generate_and_score_completions`` once per round, on rows that are groups of one, and replaces the
advantages when all rounds are done. So a trainer that computes advantages, drops rows or adds some in that method would
train on something else than its author meant. A trainer with a loss of its own must say what that loss divides by.
Both are checked at the first step. A method for checkpoints must call TRL's too, which nothing checks.
"""

from collections.abc import Callable
from typing import Any

import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

from apportion.trl import unsloth

ROUND = "_generate_and_score_completions"
LOSS_METHODS = ("compute_loss", "_compute_loss")
ASYNCHRONOUS = (
    "it samples ahead of its steps, where no batch is planned; use apportion.trl.AllocatedAsyncGRPOTrainer, or "
    "trl.GRPOTrainer"
)


def trl_class(base: Any) -> type[Any]:
    """Return TRL's own class that ``base`` is or extends. Raises TypeError if there is none.

    Unsloth's class counts as TRL's, which it replaces.
    """
    known = (GRPOTrainer, RLOOTrainer, trl.GRPOTrainer, trl.RLOOTrainer)  # the last two may be Unsloth's by now
    kinds = base.__mro__ if isinstance(base, type) else ()
    if any(kind.__name__ == "AsyncGRPOTrainer" for kind in kinds):
        raise TypeError(f"base must be a trainer that samples in its own steps, got {base.__name__}: {ASYNCHRONOUS}")
    found = next((kind for kind in kinds if kind in known), None)
    if found is None:
        raise TypeError(f"base must be a subclass of trl.GRPOTrainer or trl.RLOOTrainer, got {base!r}; name the class")
    return found


def check_trainer(kind: type[Any]) -> None:
    """Raise ValueError if a trainer of this class cannot work in this process, because of Unsloth."""
    if unsloth.is_unsloth(kind):
        unsloth.check_environment()
    elif unsloth.is_unsloth(trl.GRPOTrainer):
        raise ValueError(
            f"unsloth must be imported before apportion.trl, got {kind.__name__} without it; write import unsloth first"
        )


def around(base: type[Any], own: type[Any], loss: str | None) -> tuple[type[Any], ...]:
    """Return ``base`` between two classes, which check at the first step that its methods call TRL's.

    ``own`` is TRL's class. With a named ``loss`` the methods of the loss need not call TRL's.
    """
    if base is own:
        return (base,)
    must = (ROUND, "training_step", *(LOSS_METHODS if loss is None else ()))
    reached = type("Reached", (own,), {name: _reaching(own, name) for name in must})
    return (type("Checked", (_Checked,), {"_must": must}), base, reached)


def _reaching(own: type[Any], name: str) -> Callable[..., Any]:
    """Return TRL's method ``name``, wrapped so that its call is noted.

    The one of a round numbers its rows in the place of their advantages, which are 0 in groups of one.
    """

    def method(self: Any, *args: Any, **settings: Any) -> Any:
        self._reached |= {name}
        output = getattr(own, name)(self, *args, **settings)
        if name == ROUND and self.model.training:
            output["advantages"] = _numbers(len(output["advantages"]), output)
        return output

    return method


class _Checked:
    """Stands before a trainer's class.

    Raises ValueError if the trainer does not call TRL's methods, or changes their rows.
    """

    model: Any
    _must: tuple[str, ...]
    _reached: frozenset[str] = frozenset()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if not self.model.training:
            return output
        if ROUND not in self._reached:
            raise ValueError(
                f"{type(self).__name__}.{ROUND} must call super().{ROUND}, got rows that TRL's method did not make: an "
                "allocator runs it once per round; move what differs to a reward function, an estimator or the loss"
            )
        if not torch.equal(output["advantages"], _numbers(len(inputs), output)):
            raise ValueError(
                f"{type(self).__name__}.{ROUND} must return the rows and advantages of TRL's method unchanged, got "
                "others: an allocator replaces them after the last round; use an estimator, or change rows in the loss"
            )
        return output

    def training_step(self, *args: Any, **settings: Any) -> Any:
        """Train as the trainer does, and check that it called TRL's methods."""
        loss = super().training_step(*args, **settings)  # type: ignore[misc]
        for name in self._must:
            if name in self._reached:
                continue
            if name in LOSS_METHODS:
                raise ValueError(
                    f"{type(self).__name__} has a loss of its own ({name}), so it must be known what that divides by; "
                    'name the loss_type of TRL that divides alike, such as allocated(..., loss="grpo") for means over '
                    "a row's tokens and over rows"
                )
            raise ValueError(
                f"{type(self).__name__}.{name} must call super().{name}, got one that does not; move what differs to a "
                "reward function, an estimator or the loss"
            )
        return loss


def _numbers(count: int, output: dict[str, Any]) -> Any:
    return torch.arange(1, count + 1, dtype=torch.float32, device=output["completion_ids"].device)
