"""Score rules that split rollouts, plain functions of arrays, on a recorded run: docs/cite.md says how.

``python examples/score_rules.py [FILE]`` prints a table of the functions of FILE, by default ``scored_rules.py``. It
needs numpy alone.
"""

import gzip
import json
import runpy
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SIZE, BATCH, WINDOW = 8, 128, 5


def recorded(path=HERE / "data" / "grpo_run.jsonl.gz"):
    """Return how many of 8 rollouts of each prompt were correct at each of its visits, [Q, V], -1 after the last."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line)["correct_of_8"] for line in file]
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows])


def batches(right):
    """Yield the visit and the prompts [P] of each batch. Each visit has a random order, which is always the same."""
    rng = np.random.default_rng(0)
    for visit in range(right.shape[1]):
        places = np.flatnonzero(right[:, visit] >= 0)
        order = places[rng.permutation(len(places))]
        yield from ((visit, order[first : first + BATCH]) for first in range(0, len(order), BATCH))


def counts_of(rule, history, prompts, rate, rng):
    """Return the rule's rollouts [P] of one batch. What ``draw`` samples, at the success rates [P], is among them."""
    drawn = np.zeros(len(prompts), int)

    def draw(counts):
        drawn[:] += counts
        return rng.binomial(counts, rate)

    counts = np.asarray(rule(history, prompts, SIZE * len(prompts), draw))
    if counts.shape != drawn.shape or counts.dtype.kind not in "iu" or (counts < drawn).any():
        raise ValueError(
            f"{rule.__name__} must return integers [{len(prompts)}], at least what it drew, got {counts!r:.80}; "
            "return the rollouts of each prompt in all"
        )
    return counts


def losses(variance, counts):
    """Return the sums of RLOO's 4 v / (n - 1), of n v, and of n. A broken n is between the whole numbers beside it."""
    first, low = np.full(len(counts), np.nan), np.floor(counts)
    if (low >= 2).all():  # a single rollout has no variance of its own
        first = 4 * variance * ((1 - counts + low) / (low - 1) + (counts - low) / low)
    return np.array([first.sum(), (counts * variance).sum(), counts.sum()])


def score(rule, right):
    """Return the variance, signal and rollouts [3, 3] of the rule, of an even split of as many, and of its shuffle."""
    total, history = np.zeros((3, 3)), np.full_like(right, -1)
    for visit, prompts in batches(right):
        rng = np.random.default_rng([visit, prompts[0]])
        window = right[prompts, max(0, visit - WINDOW) : visit + WINDOW]
        rate = window.sum(axis=1, where=window >= 0) / (SIZE * (window >= 0).sum(axis=1))
        counts = counts_of(rule, history.copy(), prompts, rate, rng)
        each = counts, np.full(len(counts), counts.mean()), rng.permutation(counts)
        total += [losses(rate * (1 - rate), n) for n in each]
        history[prompts, visit] = right[prompts, visit]
    return total


def main(path):
    """Print the table of the rules of a file."""
    right, names = recorded(), runpy.run_path(path, run_name="rules")
    print("Over an even split of as many rollouts. Variance: lower is better. Signal: higher is better.\n")
    print(f"{'rule':20} {'rollouts':>8} {'variance':>9} {'shuffled':>9} {'signal':>9} {'shuffled':>9}")
    for name, rule in names.items():
        if getattr(rule, "__module__", "") == "rules" and not name.startswith("_"):
            own, even, shuffled = score(rule, right)
            share = own[2] / (SIZE * (right >= 0).sum())
            ratios = [each[loss] / even[loss] for loss in (0, 1) for each in (own, shuffled)]
            print(f"{name:20} {share:>7.3f}x", *("        -" if np.isnan(r) else f"{r:>9.3f}" for r in ratios))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "scored_rules.py"))
