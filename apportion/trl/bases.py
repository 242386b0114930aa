"""Which trainers can have an allocator, and what they must leave to TRL.

An allocator runs ``_generate_and_score_completions`` once per round, on rows that are groups of one, and replaces the
advantages when all rounds are done. So a trainer that computes advantages, drops rows or adds some in that method would
train on something else than its author meant. A trainer with a loss of its own must say what that loss divides by.
"""

import inspect
from functools import partialmethod
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

from apportion.trl import unsloth
from apportion.trl.settings import LOSSES

ROUND = "_generate_and_score_completions"
MUST_CALL_TRL = (ROUND, "_prepare_inputs", "training_step", "_save_checkpoint", "_load_optimizer_and_scheduler")
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


def is_grpo(own: type[Any]) -> bool:
    """Return whether ``own``, a result of ``trl_class``, is the GRPO trainer."""
    return own in (GRPOTrainer, trl.GRPOTrainer)


def check_overrides(base: type[Any], own: type[Any], loss: str | None) -> None:
    """Raise TypeError if a method between ``base`` and ``own``, TRL's class, leaves out what TRL's method does.

    ``loss`` is a key of ``LOSSES``, which names what an overridden loss divides by. Raises ValueError for another name.
    """
    if loss is not None and loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}; name the one that divides alike")
    for name in MUST_CALL_TRL:
        if _leaves_out_super(base, own, name):
            raise TypeError(
                f"{base.__name__}.{name} must call super().{name}, got one that does not: an allocator runs TRL's "
                "method once per round; move what differs to a reward function, an estimator or the loss"
            )
    different = [name for name in LOSS_METHODS if _leaves_out_super(base, own, name)]
    if different and loss is None:
        raise TypeError(
            f"{base.__name__} has a loss of its own ({different[0]}), so it must be known what that divides by; name "
            f'the loss_type of TRL that divides alike, such as allocated({base.__name__}, loss="grpo") for means over '
            "a row's tokens and over rows"
        )


def check_trainer(kind: type[Any]) -> None:
    """Raise ValueError if a trainer of this class cannot work in this process, because of Unsloth."""
    if unsloth.is_unsloth(kind):
        unsloth.check_environment()
    elif unsloth.is_unsloth(trl.GRPOTrainer):
        raise ValueError(
            f"unsloth must be imported before apportion.trl, got {kind.__name__} without it; write import unsloth first"
        )


def around(base: type[Any], own: type[Any]) -> tuple[type[Any], ...]:
    """Return ``base`` with a class before and after it, which check what it does to the rows that TRL makes."""
    if not _overrides(base, own, ROUND):
        return (base,)

    class Numbered(own):  # type: ignore[misc]
        """Comes after ``base``: numbers TRL's rows in the place of their advantages, which are 0 in groups of one."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            if self.model.training:
                output["advantages"], self._numbered = _numbers(inputs, output), True
            return output

    return (_Unchanged, base, Numbered)


class _Unchanged:
    """Comes before a trainer: raises ValueError if its rows are not those of TRL, by their numbers."""

    model: Any
    _numbered: bool = False

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._numbered = False
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if self.model.training and not self._numbered:
            raise ValueError(
                f"{type(self).__name__}.{ROUND} must call super().{ROUND}, got a call of TRL's class by name, which "
                "hides the rows from an allocator; write super()"
            )
        if self.model.training and not torch.equal(output["advantages"], _numbers(inputs, output)):
            raise ValueError(
                f"{type(self).__name__}.{ROUND} must return the rows and advantages of TRL's method unchanged, got "
                "others: an allocator replaces them after the last round; use an estimator, or change rows in the loss"
            )
        return output


def _numbers(inputs: Any, output: dict[str, Any]) -> Any:
    return torch.arange(1, len(inputs) + 1, dtype=torch.float32, device=output["completion_ids"].device)


def _overrides(base: type[Any], own: type[Any], name: str) -> list[Any]:
    """Return the methods ``name`` of ``base`` and its ancestors that come before ``own``, TRL's class."""
    before = base.__mro__[: base.__mro__.index(own)]
    return [vars(kind)[name] for kind in before if name in vars(kind)]


def _leaves_out_super(base: type[Any], own: type[Any], name: str) -> bool:
    """Return whether a method ``name`` between ``base`` and ``own`` does not name itself, so does not call super."""
    return any(name not in _names(method) for method in _overrides(base, own, name))


def _names(method: Any) -> set[str]:
    """Return the names and attributes that a method uses, and those of what its decorators wrap."""
    waiting: list[Any] = [inspect.unwrap(method.func if isinstance(method, partialmethod) else method)]
    functions, names = list[FunctionType](), set[str]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, CodeType):
            names.update(part.co_names)
            waiting += part.co_consts
        elif isinstance(part, FunctionType) and part not in functions:
            functions.append(part)
            waiting += [part.__code__, *(cell.cell_contents for cell in part.__closure__ or () if cell != CellType())]
    return names
