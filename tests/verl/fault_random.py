"""A long run of verl in one process with faults at random moments, and no operator."""

import logging
import random
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.cases import lines
from tests.verl.fault_scene import PROMPTS, ROLLOUTS, Scene
from tests.verl.fault_table import act_of

TABLE = r"""
    score => raises remotely; scores .nan; scores null; scores one; returns [1.0]; late 15 s; late for ever; kills me; \
        stops me; jumps -86400 s; kills worker 0; stops worker 1
    generate => raises remotely; late 60 s; late for ever; generates []; generates null; stops server for 8 s
    acquire => raises remotely; late 10 s
    write => raises here; raises here after; late 15 s; kills me; kills me after; stops me
    columns => raises here; kills me; kills me after; stops me after; late 15 s
    status => raises here; kills me after; stops me after
    row => raises here; kills me
    report => kills me; raises in the network; late 4 s after
    task => kills me; raises in the network
    rows => kills me; raises in the network
    update => late 60 s; kills worker 1; stops worker 0; sleeps 600 s
"""
"""Faults that a run must survive, by the point where they strike."""

FAULTS = {point: list(map(act_of, re.split(r"; +", acts))) for point, acts in lines(TABLE.replace("\\\n", ""))}

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
