"""Unsloth's trainer: the columns of its batches, and its settings that an allocator cannot have.

Unsloth replaces TRL's trainers by classes of its own. That for GRPO computes log-probabilities [N, M + T], where M is
the length of the longest prompt minus that of the shortest one, and T the width of the completions. A row begins where
the shortest prompt ends: its completion comes after the tokens by which its own prompt is longer. M differs between
rounds. So each round's columns become TRL's, [N, T], and the finished batch gets a window of its own.

Unsloth also takes its mask of completions from their token ids, so rows that TRL would mask must hold padding.

The names are those of unsloth 2026.10.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

KEY = "max_left_pad"
"""Column [N, 1] with M, the offset of a window. Only Unsloth's GRPO trainer has it."""
WINDOWED = ("old_per_token_logps", "ref_per_token_logps")
BY_GROUP = {
    "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE": ("0", "an allocator decides which groups are trained on"),
    "UNSLOTH_GRPO_LOSS_AGGREGATION": ("", 'weighting="prompt" weighs prompts equally'),
    "UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD": ("0", "rounds of one batch could differ in it"),
}
"""Unsloth's environment variables that need whole groups or batches: the value that turns each off, and the reason."""


def is_unsloth(kind: type[Any]) -> bool:
    """Return whether ``kind`` is Unsloth's trainer, or a subclass of it."""
    return any(base.__name__.startswith(("Unsloth", "_Unsloth")) for base in kind.__mro__)


def check_environment() -> None:
    """Raise ValueError if Unsloth weighs rows by groups, because each round consists of groups of one row."""
    for name, (off, reason) in BY_GROUP.items():
        if os.environ.get(name, off).strip() not in (off, ""):
            raise ValueError(
                f"{name} must be unset under an allocator, got {os.environ[name]!r}: {reason}; unset the variable"
            )


def aligned(logprobs: Tensor, prompt_mask: Tensor, width: int) -> Tensor:
    """Return log-probabilities [N, T] of completions of ``width`` T, from Unsloth's [N, M + T] or TRL's [N, T]."""
    extra = logprobs.size(1) - width
    if not extra:
        return logprobs
    return logprobs.gather(1, _places(prompt_mask, extra, width))


def windowed(table: Mapping[str, Tensor], pad_token: int) -> dict[str, Tensor]:
    """Return the rows of ``table`` in Unsloth's format, the inverse of ``aligned``.

    Masked rows hold padding in place of their completions.
    """
    ids, mask = table["completion_ids"], table["prompt_mask"]
    (rows, width), extra = ids.shape, int((mask.size(1) - mask.sum(1)).max())
    found = dict(table)
    found["completion_ids"] = torch.where(table["completion_mask"].any(1, keepdim=True), ids, pad_token)
    found[KEY] = torch.full((rows, 1), extra, device=ids.device)
    for key in found.keys() & set(WINDOWED):
        wider = found[key].new_zeros(rows, extra + width)
        found[key] = wider.scatter(1, _places(mask, extra, width), found[key])
    return found


def _places(prompt_mask: Tensor, extra: int, width: int) -> Tensor:
    """Return the indices [N, T] of the completions in a window [N, M + T]."""
    padding = prompt_mask.size(1) - prompt_mask.sum(1, keepdim=True)
    return extra - padding + torch.arange(width, device=prompt_mask.device)
