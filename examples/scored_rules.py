"""Rules as plain functions, for examples/score_rules.py: copy one and change it.

A rule is ``rule(history, prompts, budget, draw) -> counts``. ``history`` [Q, V] has how many of 8 rollouts of each
prompt were correct at each visit so far, -1 for none. ``prompts`` [P] are the places in it of this batch. ``budget`` is
the rollouts of the batch. ``draw(counts)`` samples [P] rollouts now and returns how many were correct, [P]. The result
is the rollouts of each prompt, [P], with those that were drawn.
"""

import numpy as np

HIGH, DISCOUNT = 64, 0.9


def even(history, prompts, budget, draw):
    """The same for every prompt."""
    return _split(budget, np.ones(len(prompts), bool))


def pilots_then_all_in(history, prompts, budget, draw):
    """Half of the budget for pilots of every prompt, and the other half for those whose pilots differ."""
    pilots = np.full(len(prompts), budget // len(prompts) // 2)
    right = draw(pilots)
    mixed = (right > 0) & (right < pilots)
    return pilots + _split(budget - pilots.sum(), mixed if mixed.any() else ~mixed)


def vip_counts(history, prompts, budget, draw):
    """VIP (arXiv 2602.01601) with RLOO's variance and p from discounted counts."""
    right, wrong = _beta(history, prompts)
    m = np.arange(3.0, HIGH)
    gains = 4 * (right * wrong / (right + wrong) ** 2)[:, None] * (1 / (m * (m - 1)))
    return _spend(gains, budget, np.full(len(prompts), 3))


def hora(history, prompts, budget, draw):
    """HORA (arXiv 2605.07114): half of the budget first, and the rest where a first success is likeliest."""
    pilots = np.full(len(prompts), budget // len(prompts) // 2)
    right = draw(pilots)
    a, b = (1.0 + right)[:, None], (1.0 + pilots - right)[:, None]
    later = np.arange(HIGH - pilots[0] - 1)
    gains = np.cumprod(np.concatenate([a / (a + b), (b + later) / (a + b + 1 + later)], axis=1), axis=1)
    return _spend(gains, budget, pilots)


def thompson_half(history, prompts, budget, draw):
    """MoPPS (arXiv 2507.04632) in a batch: the half whose drawn success rate is nearest to one half gets everything."""
    drawn = np.random.default_rng(prompts).beta(*_beta(history, prompts))
    chosen = np.zeros(len(prompts), bool)
    chosen[np.argsort((drawn - 0.5) ** 2, kind="stable")[: -(-len(prompts) // 2)]] = True
    return _split(budget, chosen)


def cgrpo_alike(history, prompts, budget, draw):
    """The stop of C-GRPO if all wrong answers are alike: 2 rollouts, and 32 in all where these differ."""
    pilots = np.full(len(prompts), 2)
    return np.where(draw(pilots) == 1, 32, pilots)


def until_mixed(history, prompts, budget, draw):
    """The stop of Reinforce-Ada (arXiv 2510.04996): rounds of 2 until a right and a wrong one were seen, 16 at most.

    All of them count here. The paper trains on some of them.
    """
    counts, right = np.zeros((2, len(prompts)), int)
    for _ in range(8):
        more = 2 * ((right == 0) | (right == counts))
        right, counts = right + draw(more), counts + more
    return counts


def _beta(history, prompts):
    """Return one more than the discounted numbers of right and of wrong rollouts, [P] each."""
    right = wrong = np.zeros(len(prompts))
    for found in history[prompts].T:
        seen = found >= 0
        right = np.where(seen, DISCOUNT * right + found, right)
        wrong = np.where(seen, DISCOUNT * wrong + (8 - found), wrong)
    return 1 + right, 1 + wrong


def _spend(gains, budget, low):
    """Return counts from ``low`` on, by the largest of the gains [P, W] of further rollouts, which fall in each row."""
    taken = np.argsort(-gains, axis=None, kind="stable")[: budget - low.sum()]
    return low + np.bincount(taken // gains.shape[1], minlength=len(low))


def _split(budget, among):
    """Return an even split over the prompts in the mask ``among`` [P]; the first ones get what is left."""
    each, left = divmod(int(budget), int(among.sum()))
    return np.where(among, each + (np.cumsum(among) <= left), 0)


if __name__ == "__main__":
    seen, some = np.array([[0], [1], [4], [8]]), np.arange(4)
    print("counts of VIP after 0, 1, 4 and 8 of 8 were right:", vip_counts(seen, some, 32, None))
