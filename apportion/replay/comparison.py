"""Ratios and differences between a rule and its control, with intervals over prompts and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from apportion.replay.cells import Cells
from apportion.replay.intervals import Spanned, ratio_over_prompts, resampled, spanned
from apportion.types import Floats

RESAMPLES = 1000
AT_ONCE = 4_000_000
"""Weights of prompts that are held in memory at once."""


def ratios(cells: Cells, measures: Sequence[str]) -> dict[str, Spanned]:
    """Return for each measure the rule's sum over that of the even split, with a paired bootstrap interval.

    A measure that is unknown is left out. Prompts are resampled, and seeds if there are several, for rule and control
    alike. The counts stay as they are: a prompt's share of a batch is not planned again for the resampled batch.
    """
    known = [name for name in measures if not np.isnan([cells.rule[name], cells.even[name]]).any()]
    if not known:
        return {}
    sums = np.array([[cells.by_prompt(name), cells.by_prompt(name, even=True)] for name in known])  # [K, 2, S, Q]
    with np.errstate(invalid="ignore"):  # 0 times inf
        drawn = [
            ((prompts @ sums.swapaxes(2, 3)) * seeds).sum(axis=3)
            for seeds, prompts in _weights(cells.seeds, cells.prompts)
        ]
        above, below = np.concatenate([sums.sum(axis=(2, 3))[..., None], *drawn], axis=2).swapaxes(0, 1)  # [K, 1 + R]
        found = above / np.where((below > 0) & (below < np.inf), below, np.nan)
    several = cells.prompts > 1
    return {name: spanned(own[0], own[1:] if several else own[:0]) for name, own in zip(known, found, strict=True)}


def share_of(found: Floats, control: Floats, length: int) -> Spanned:
    """Return the mean of ``found`` [S, T] less that of ``control`` [S, T], by seed and step, with its interval.

    Blocks of ``length`` steps are resampled, in pairs and of all seeds, because neighbouring steps are alike.
    """
    apart = found - control
    cut = apart.shape[1] // length * length
    blocks = apart[:, :cut].reshape(apart.shape[0], -1, length) if cut else apart[:, None]
    sums, sizes = np.nansum(blocks, axis=2).ravel(), np.isfinite(blocks).sum(axis=2).ravel()
    return ratio_over_prompts(sums, sizes, resamples=RESAMPLES)._replace(value=float(np.nanmean(apart)))


def _weights(seeds: int, prompts: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield for some resamples the weights of the seeds and of the prompts."""
    generator, each = np.random.default_rng(0), max(1, AT_ONCE // max(prompts, 1))
    for first in range(0, RESAMPLES, each):
        number = min(each, RESAMPLES - first)
        weights = resampled(generator, prompts, number)
        yield generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=number).astype(np.float64), weights
