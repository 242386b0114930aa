"""Rows of masked padding in verl's asynchronous updates, if a stream fills mini-batches or takes a number of prompts.

python -m benchmarks.verl_padding              # the coordinator alone, without Ray
"""

import numpy as np

from apportion import HORA, VIP
from benchmarks.common import spread, write
from tests.verl.coordinator.test_streamed import Trainer

SEEDS = (0, 1, 2)
EACH, ROLLOUTS, PROMPTS, UPDATES, SKIPPED = 16, 8, 400, 80, 30
MULTIPLE = EACH * ROLLOUTS
RULES = {
    "vip": lambda: VIP(rollouts_per_prompt=ROLLOUTS, high=32),
    "hora": lambda: HORA(rollouts_per_prompt=ROLLOUTS, pre_rollouts=4, high=24),
}
WAYS = {f"{EACH} prompts": None, "fills a mini-batch": MULTIPLE}


def measured(rule, most_rows, seed):
    """Return the share of padding, the mini-batches an update, and the prompts an update."""
    trainer = Trainer(RULES[rule](), seed=seed, most_rows=most_rows, each=EACH, prompts=PROMPTS, bound=28)
    trainer.feed(4 * EACH)
    for _ in range(UPDATES):
        trainer.step()
    sizes = trainer.sizes[SKIPPED:]
    rows = np.array([sum(own) for own in sizes])
    padded = -(-rows // MULTIPLE) * MULTIPLE
    return 1 - rows.sum() / padded.sum(), padded.mean() / MULTIPLE, float(np.mean([len(own) for own in sizes]))


def main():
    """Measure, and write the table."""
    rows = []
    for rule in RULES:
        for way, most_rows in WAYS.items():
            found = zip(*(measured(rule, most_rows, seed) for seed in SEEDS), strict=True)
            cells = [spread(column, form) for column, form in zip(found, (".3f", ".2f", ".1f"), strict=True)]
            rows.append([rule, way, *cells])
    notes = (
        f"Updates of verl's separate_async, whose mini-batches have {EACH} prompts of {ROLLOUTS} rollouts: verl pads "
        f"the rows of an update to a multiple of {MULTIPLE}. Its own buffer takes {EACH} prompts an update. {UPDATES} "
        f"updates over {PROMPTS} prompts, the first {SKIPPED} left out; a tenth of the rollouts fails.",
    )
    columns = ("rule", "an update", "padding", "mini-batches an update", "prompts an update")
    write("verl_padding", "Padding of updates of a stream in verl", columns, rows, notes, seeds=SEEDS)


if __name__ == "__main__":
    main()
