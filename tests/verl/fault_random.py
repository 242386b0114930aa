"""A long run of verl in one process with faults at random moments, and no operator."""

import logging
import math
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.verl.fault_scene import PROMPTS, ROLLOUTS, Scene
from tests.verl.fault_table import BROKEN, GONE, jumps, kills, late, raises, remote, returns, score, stops, tokens

FAULTS = {
    "score": (
        raises(remote(BROKEN)), score(math.nan), score(None), score("one"), returns([1.0]), late(15.0), late(math.inf),
        kills("me"), stops("me"), jumps(wall=-86400.0), kills("worker 0"), stops("worker 1"),
    ),
    "generate": (
        raises(remote(BROKEN)), late(60.0), late(math.inf), tokens([]), tokens(None), stops("server", seconds=8.0),
    ),
    "acquire": (raises(remote(BROKEN)), late(10.0)),
    "write": (
        raises(BROKEN), raises(BROKEN, after=True), late(15.0), kills("me"), kills("me", after=True), stops("me"),
    ),
    "columns": (raises(BROKEN), kills("me"), kills("me", after=True), stops("me", after=True), late(15.0)),
    "status": (raises(BROKEN), kills("me", after=True), stops("me", after=True)),
    "row": (raises(BROKEN), kills("me")),
    "report": (kills("me"), raises(GONE), late(4.0, after=True)),
    "task": (kills("me"), raises(GONE)),
    "rows": (kills("me"), raises(GONE)),
    "update": (late(60.0), kills("worker 1"), stops("worker 0"), jumps(all_clocks=600.0)),
}  # fmt: skip
"""Faults that a run must survive, by the point where they strike."""

SHARE = 0.01
"""The share of passages of a point that a fault strikes."""


@dataclass
class RandomRun:
    """What came of a run: its ``steps`` of those ``wanted``, faults by point, and the rollouts of a budget."""

    seed: int
    wanted: int
    steps: int = 0
    faults: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)
    rollouts: int = 0
    budget: int = 0
    slowest: float = 0.0
    last: str = ""


def random_run(assets, steps, seed):
    """Run ``steps`` steps with random faults. An odd ``seed`` is that of an asynchronous trainer."""
    rng, faults, found = random.Random(seed), Counter(), RandomRun(seed, steps)

    def choose(point, who):
        if point not in FAULTS or rng.random() >= SHARE * (5 if point in ("update", "rows") else 1):
            return None
        faults[point] += 1
        return rng.choice(FAULTS[point])

    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as name:
            scene = Scene(Path(name), assets, steps=steps, ahead=bool(seed % 2))
            scene.random = choose
            try:
                scene.run()
            except Exception as error:  # noqa: BLE001 - it is what is looked for
                found.last = str(error) or repr(error)
    finally:
        logging.disable(logging.NOTSET)
    found.steps, found.faults, found.wrong = len(scene.seconds), dict(faults), scene.wrong
    found.slowest = max(scene.seconds.values(), default=0.0)
    found.rollouts, found.budget = scene.rollouts, found.steps * PROMPTS * ROLLOUTS
    return found
