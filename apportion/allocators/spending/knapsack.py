"""``spend_costs``, the solver for budgets if a rollout of one prompt costs more than that of another.

With unequal costs the allocation is a 0/1 knapsack whose items are single rollouts. Its relaxation, in which one item
may be cut, takes items by density, gain / cost, down to the break density lambda (G. B. Dantzig, Discrete-variable
extremum problems, Operations Research 5, 1957). Any integer solution falls short of the relaxed one by

    the sum of |gain - lambda cost| over the items that it decides the other way  +  lambda (budget left over),

the regret. So once a solution of regret R is known, every item whose own |gain - lambda cost| is at least R is decided
as in the relaxation, and dynamic programming over the few others, the core, is exact (E. Balas and E. Zemel, An
algorithm for large zero-one knapsack problems, Operations Research 28, 1980). The core is grown until that holds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion.allocators.spending.solver import check_gains, spend
from apportion.checks import check_integer, number_array
from apportion.types import ArrayValue, Counts, Floats, Mask

FIRST_CORE, LARGEST_CORE = 16, 1024
MOST_WORK = 2**26
"""Largest number of cells (items x budget) of the dynamic programme: one byte each, about half a second in all."""


@dataclass(frozen=True, eq=False, repr=False)
class Spent(ArrayValue):
    """Counts [P], and ``gap``: any other counts gain at most so much more. It is 0.0 if these counts are optimal.

    The certificate is exact up to the rounding of floating-point sums.
    """

    counts: Counts
    gap: float


def spend_costs(gains: Floats, budget: int, low: Counts, costs: ArrayLike, most_work: int = MOST_WORK) -> Spent:
    """Return rollouts per prompt [P] of the largest total gain whose ``costs`` [P] add up to at most ``budget``.

    ``gains`` [P, W] and ``low`` [P] are as for ``spend``; ``low`` is paid for first. Costs are whole numbers, at least
    1. Rollouts of negative gain are not bought. What remains pays for no other rollout of gain 0 or more. If all costs
    are equal the result is that of ``spend``. Equal densities go to the prompt that has received fewest of them, then
    by prompt order.

    It takes O(P W) time, about five times the memory of ``gains``, and then the dynamic programme. If that would have
    more than ``most_work`` cells, or ``LARGEST_CORE`` items, the result is the best one found so far, and ``gap``
    bounds its distance from the optimum. With ``most_work`` 0 it is the greedy one, by gain per cost.

    Raises ValueError if the budget does not pay for ``low``, for costs that are not whole, and for NaN or inf as gains.

    >>> gains = np.array([[0.9, 0.5], [0.6, 0.55]])
    >>> spend_costs(gains, budget=5, low=np.array([0, 0]), costs=[3, 2])
    Spent(counts=array([1, 1]), gap=0.0)
    """
    gains, low = check_gains(gains, low)
    costs = _whole(costs, len(low))
    room = check_integer("budget", budget) - int(costs @ low)
    if room < 0:
        raise ValueError(
            f"budget must be at least {costs @ low} to pay for the {low.sum()} rollouts already granted, got {budget}; "
            "raise it, or grant fewer"
        )
    wanted = gains >= 0
    most: Counts = wanted.sum(axis=1)
    if int(costs @ most) <= room:
        return Spent(low + most, 0.0)
    if (costs == costs[0]).all():
        return Spent(spend(np.where(wanted, gains, -np.inf), int(low.sum()) + room // int(costs[0]), low), 0.0)
    density = np.where(wanted, gains / costs[:, None], -np.inf)
    price = _break_density(density[wanted], np.broadcast_to(costs[:, None], gains.shape)[wanted], room)
    bought = _densest(density, costs, room, price)
    change, gap = _improve(density, costs, room, price, bought, most_work)
    bought = bought + change
    return Spent(low + _top_up(density, most, costs, room, bought), gap)


def _whole(costs: ArrayLike, prompts: int) -> Counts:
    given = number_array("costs", costs)
    if given.shape != (prompts,):
        raise ValueError(f"costs must be [{prompts}], one per prompt, got {given.shape}; give every prompt its own")
    bad = np.flatnonzero(~((given >= 1) & (given == np.floor(given)) & np.isfinite(given)))
    if bad.size:
        raise ValueError(
            f"costs must be whole numbers of at least 1, got {given[bad[0]]} for prompt {bad[0]}; round them up"
        )
    return given.astype(np.int64)


def _break_density(density: Floats, cost: Counts, room: int) -> float:
    """Return the density (gain per cost) of the first item that no longer fits, densest first, by quickselect."""
    while True:
        pivot = float(np.partition(density, density.size // 2)[density.size // 2])
        denser, sparser = density > pivot, density < pivot
        above, upto = int(cost[denser].sum()), int(cost[~sparser].sum())
        if above <= room < upto:
            return pivot
        keep = denser if above > room else sparser
        room -= 0 if above > room else upto
        density, cost = density[keep], cost[keep]


def _densest(density: Floats, costs: Counts, room: int, price: float) -> Counts:
    """Return counts [P] of all items denser than ``price``. Items of that density are added in turn while they fit."""
    bought: Counts = (density > price).sum(axis=1)
    prompt, number = np.nonzero(density == price)
    turn = prompt[np.argsort(number - bought[prompt], kind="stable")]
    fits = np.cumsum(costs[turn]) <= room - int(costs @ bought)
    return bought + np.bincount(turn[fits], minlength=len(costs))


def _improve(
    density: Floats, costs: Counts, room: int, price: float, bought: Counts, most_work: int
) -> tuple[Counts, float]:
    """Return the change of ``bought`` [P], maybe negative, and a bound on how much better any counts could be."""
    loss = (np.abs(density - price) * costs[:, None]).ravel()
    last = np.partition(loss, LARGEST_CORE)[LARGEST_CORE] if loss.size > LARGEST_CORE else np.inf
    near = np.flatnonzero(loss <= last)  # argpartition would order equal losses as the processor's own code does
    near = near[np.argsort(loss[near], kind="stable")][: LARGEST_CORE + 1]
    prompt, number = np.divmod(near, density.shape[1])
    gain, cost, inside = density[prompt, number] * costs[prompt], costs[prompt], number < bought[prompt]
    loss = np.append(loss[near], np.inf)
    left = room - int(costs @ bought)
    regret, size, change = price * left, 0, np.zeros_like(bought)
    while regret > loss[size]:
        larger = min(max(FIRST_CORE, 2 * size), int(np.searchsorted(loss, regret)), LARGEST_CORE)
        core = slice(larger)
        states = left + int(cost[core][inside[core]].sum())
        if larger == size or larger * states > most_work:
            break
        size, swapped = larger, _knapsack(gain[core], cost[core], states).astype(np.int64) - inside[core]
        regret = price * (left - int(swapped @ cost[core])) + float(np.abs(swapped) @ loss[core])
        change = np.bincount(prompt[core], weights=swapped, minlength=len(costs)).astype(np.int64)
    return change, max(0.0, float(regret - loss[size]))


def _knapsack(gain: Floats, cost: Counts, room: int) -> Mask:
    """Return which items of nonnegative gain gain most within ``room``, by Bellman's recursion, a row per item."""
    best = np.zeros(room + 1)
    better = np.zeros((len(gain), room + 1), bool)
    for item, (g, c) in enumerate(zip(gain.tolist(), cost.tolist(), strict=True)):
        if c <= room:
            candidate = best[: room + 1 - c] + g
            np.greater(candidate, best[c:], out=better[item, c:])
            np.maximum(candidate, best[c:], out=best[c:])
    taken, state = np.zeros(len(gain), bool), room
    for item in reversed(range(len(gain))):
        if better[item, state]:
            taken[item] = True
            state -= int(cost[item])
    return taken


def _top_up(density: Floats, most: Counts, costs: Counts, room: int, bought: Counts) -> Counts:
    """Return ``bought`` [P] plus, one by one, the densest next rollout that the rest of ``room`` pays for."""
    bought, left = bought.copy(), room - int(costs @ bought)
    while (fits := np.flatnonzero((bought < most) & (costs <= left))).size:
        q = fits[np.lexsort((bought[fits], -density[fits, bought[fits]]))[0]]
        bought[q] += 1
        left -= int(costs[q])
    return bought
