"""Ratios and differences between a rule and its control, with intervals over prompts and seeds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from apportion.replay.cells import Cells
from apportion.replay.intervals import Spanned
from apportion.types import Floats

RESAMPLES, LEVEL = 1000, 0.95
AT_ONCE = 4_000_000
"""Weights of prompts that are held in memory at once."""


def ratios(cells: Cells, measures: tuple[str, ...], resamples: int = RESAMPLES) -> dict[str, Spanned]:
    """Return for each measure the rule's sum over that of the even split, with a paired bootstrap interval.

    Prompts are resampled, and seeds if there are several, for rule and control alike. The counts stay as they are: a
    prompt's share of a batch is not planned again for the resampled batch.
    """
    sides = {
        name: (cells.by_prompt(name), cells.by_prompt(name, even=True)) for name in measures if _is_known(cells, name)
    }
    if not sides:
        return {}
    drawn = [
        {name: (_weighed(own, *weights), _weighed(even, *weights)) for name, (own, even) in sides.items()}
        for weights in _weights(cells, resamples)
    ]
    found = {}
    for name, (own, even) in sides.items():
        above, below = (np.concatenate([part[name][side] for part in drawn]) for side in (0, 1))
        whole = _comparison(float(own.sum()), float(even.sum()), above, below)
        found[name] = whole if cells.prompts > 1 else Spanned(whole.value, np.nan, np.nan)
    return found


def share_of(found: Floats, control: Floats, length: int, generator: Generator, resamples: int = RESAMPLES) -> Spanned:
    """Return the mean of ``found`` [S, T] less that of ``control`` [S, T], by seed and step, with its interval.

    Blocks of ``length`` steps are resampled, in pairs and of all seeds, because neighbouring steps are alike.
    """
    apart = found - control
    cut = apart.shape[1] // length * length
    blocks = apart[:, :cut].reshape(apart.shape[0], -1, length) if cut else apart[:, None]
    sums, sizes = np.nansum(blocks, axis=2).ravel(), np.isfinite(blocks).sum(axis=2).ravel()
    value = float(np.nanmean(apart))
    if len(sums) < 2:
        return Spanned(value, np.nan, np.nan)
    chosen = generator.integers(len(sums), size=(resamples, len(sums)))
    low, high = np.quantile(sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1), _tails())
    return Spanned(value, float(low), float(high))


def _is_known(cells: Cells, name: str) -> bool:
    return not (np.isnan(cells.rule[name]).any() or np.isnan(cells.even[name]).any())


def _weights(cells: Cells, resamples: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield for some resamples the weights of the seeds and of the prompts."""
    generator, prompts = np.random.default_rng(0), cells.prompts
    each = max(1, AT_ONCE // max(prompts, 1))
    for first in range(0, resamples, each):
        number = min(each, resamples - first)
        chosen = generator.integers(prompts, size=(number, prompts)) + prompts * np.arange(number)[:, None]
        seeds = generator.multinomial(cells.seeds, np.full(cells.seeds, 1 / cells.seeds), size=number)
        weights = np.bincount(chosen.ravel(), minlength=number * prompts).reshape(number, prompts)
        yield seeds.astype(np.float64), weights.astype(np.float64)


def _weighed(values: Floats, seeds: Floats, prompts: Floats) -> Floats:
    """Return the weighted sums of ``values`` [S, Q], one for each resample."""
    with np.errstate(invalid="ignore"):  # 0 times inf
        return np.asarray(((prompts @ values.T) * seeds).sum(axis=1))


def _comparison(own: float, even: float, above: Floats, below: Floats) -> Spanned:
    if not (np.isfinite(own) and np.isfinite(even)):
        return Spanned(np.inf if np.isfinite(even) else np.nan, np.nan, np.nan)
    if even == 0:
        return Spanned(np.nan, np.nan, np.nan)
    usable = below > 0
    low, high = np.quantile(above[usable] / below[usable], _tails())
    return Spanned(own / even, float(low), float(high))


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2
