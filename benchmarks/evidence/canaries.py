"""What values depend on, at its smallest: a canary for the cells of each file under ``measured``, a second each.

A canary runs the rules, formulas and functions of its cells on small fixed inputs, and returns the figures. They are
kept in ``measured/canaries.json``, and a test computes them again. As long as they agree, the values of the cells are
those of today's code: a rule that decides otherwise and a changed formula are seen, new names and checks are not.

The lab takes a few steps in double precision, from a base that is trained in a second. Rounding differs between
machines, so figures agree to ``CLOSE``, and no weight of single precision is among them.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from apportion import HORA, Batch, Belief, Plan, Prompt, Rollout, Uniform
from apportion.advantages import advantages_of
from apportion.baselines import Optimal
from apportion.lab.policy import base as bases
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.network import new_policy
from apportion.lab.policy.recipes import Recipe, Stage
from apportion.lab.training.pool import Pool
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.demonstrator import EASY
from apportion.lab.world.task import Problem, held_out_problems, training_problems
from apportion.predictors import GaussianProcess, MovingAverage
from apportion.types import Group
from benchmarks.evidence import (
    ar3po_counts,
    ar3po_lab,
    combinations_measured,
    hora_hits_measured,
    hora_measured,
    hora_theory_measured,
    optpo_combined_measured,
    optpo_learning_measured,
    optpo_votes_measured,
    vip_allocation_measured,
    vip_assumptions_measured,
    vip_learning_measured,
    vip_prediction_measured,
)
from benchmarks.evidence.cell import CANARIES as KEPT
from benchmarks.evidence.cell import rounded, write_lines
from benchmarks.evidence.cells import COMBINED, MATCHED, UPDATES
from benchmarks.evidence.learning import HARD, learn, majority_at, passes
from benchmarks.evidence.vip_tests import correlations, edgington, fisher, levene, obrien
from benchmarks.recorded import Question, Streams, read_vendored

CLOSE = 1e-6
"""The largest relative difference of two figures that are the same on different machines."""
DIGITS = 9
"""Significant digits of a figure that is kept."""
ASKED = ("7 a+3 =", "3 a-4 =", "0 a*7 =", "5 a+9 =", "9 a-1 =", "2 a*2 =", "8 a+5 =", "1 a-8 =")
PROBLEMS = tuple(map(Problem.parse, ASKED))
SMALL = {**HARD, "rollouts": 128, "prompts_per_step": 4, "evaluate_every": 64}
VOTES = {**optpo_learning_measured.TRAINING, "prompts_per_step": 4, "steps": 2, "evaluate_every": 2, "temperature": 0.3}
"""Two steps of votes that are sure enough to stop early."""
SUCCESS = np.array([0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9, 0.98])


@contextmanager
def in_double():
    """Have torch compute in double precision, and what casts to single precision stay in double."""
    plain, dtype = torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.Tensor.float = plain


@cache
def small_base():
    """Return the folder of a base that solves about one of nine problems of one operation."""
    folder = tempfile.TemporaryDirectory()
    stage = Stage(EASY, steps=45, learning_rate=1e-2)
    recipe = Recipe((stage,), sequences=1000, operation_weights=(1,), batch_size=32, warm_up_steps=5)
    with in_double():
        policy, rng = new_policy(0).double(), np.random.default_rng(0)
        with torch.no_grad():
            for weights in policy.parameters():
                if weights.ndim > 1:
                    weights.copy_(torch.from_numpy(rng.normal(0, 0.1, weights.shape)))
        bases._train(policy, recipe, stage, None)
        policy.config.lab_task = recipe.task
        policy.save_pretrained(folder.name)
    return folder


class DoubleTrainer(Trainer):
    """A trainer of ``PROBLEMS`` in double precision."""

    def __init__(self, *given):
        gold = {each.prompt().id: frozenset([each.answer]) for each in PROBLEMS}
        super().__init__(*given, Pool(PROBLEMS, held_out_problems(12), gold))
        for model in (self.policy, self.start, *filter(None, [self.learner.critic])):
            model.double()


def small(rule, measure=None, kind=DoubleTrainer, **settings):
    """Return what a few steps of ``rule`` in the lab come to: counts, rewards, gradients and exact success."""

    def read(trainer, run):
        steps = {key: run.steps[key].tolist() for key in ("counts", "train_reward", "grad_norm")}
        after = exact_success(trainer.policy, PROBLEMS).tolist()
        return {**steps, "after": after, **(measure(trainer, run) if measure else {})}

    with in_double():
        return learn(rule, 0, {**SMALL, **settings, "base": small_base().name}, read, kind)


def batches(batches=4, prompts=12):
    """Yield prompts and batches with drawn outcomes."""
    rng = np.random.default_rng(0)
    asked = [each.prompt() for each in training_problems(prompts, 0)]
    success = rng.beta(1, 1, prompts)
    for _ in range(batches):
        right = rng.binomial(8, success)
        rollouts = [[Rollout(k < c, score_norm=1.0 + (k + c) % 3) for k in range(8)] for c in right]
        yield asked, Batch.start(asked, Belief.uniform(prompts)).add(Plan([8] * prompts), rollouts)


def controls():
    """Uniform groups under each estimator, and what a policy can do at the end."""

    def able(trainer, _):
        return {"pass_at": passes(exact_success(trainer.policy, PROBLEMS)), "maj_4": majority_at(trainer, 4, 4)}

    shapes = ((4, "rloo"), (8, "rloo"), (8, "dr_grpo"), (8, "grpo"))
    return {f"{n} {e}": small({"name": "uniform", "rollouts_per_prompt": n}, able, estimator=e) for n, e in shapes}


def vip_learning():
    """VIP's arms, and the size of advantages. Features of problems take the place of text embeddings."""
    rule = partial(vip_learning_measured.rule_named, embedder=hora_measured.problem_features)
    rules = ("gp", "ridge", "inverse_accuracy", "inverse_variance")
    arms = (("gp", "dr_grpo"), *((name, "rloo") for name in rules))
    groups = [Group(Prompt(str(right)), tuple(Rollout(k < right) for k in range(8))) for right in (0, 1, 4, 7)]
    size = np.abs(advantages_of(groups, "dr_grpo")).mean()
    return {f"{name} {e}": small(partial(rule, name, 8, e), estimator=e) for name, e in arms} | {"advantages": size}


def vip_prediction():
    """What every predictor foresees."""
    found: dict[str, list[list[float]]] = {}
    for name, each in vip_prediction_measured.predictors(hora_measured.problem_features, 6).items():
        for asked, batch in batches():
            found.setdefault(name, []).append(each.predict(asked).mean.tolist())
            each.update(batch)
    return found


def vip_assumptions():
    """The tests of both assumptions on drawn rewards and norms, the variance formula, and norms of rollouts."""
    rng = np.random.default_rng(0)
    right = (rng.random((12, 8)) < rng.random((12, 1))).astype(float)
    with in_double():
        policy = bases.base_policy(small_base().name).double()
        scored = [each.tolist() for each in vip_assumptions_measured.scored(policy, PROBLEMS[:2], 0)]
    return {
        "tests": vip_assumptions_measured.assumptions(right, rng.gamma(2.0, 1 + right), shuffles=19),
        "formula": vip_assumptions_measured.formula(groups=1000),
        "scored": scored,
    }


def vip_allocation():
    """VIP's solvers beside all allocations, and counts by p."""
    return {
        "counts": vip_allocation_measured.counts_by_p(),
        "relaxed": vip_allocation_measured.relaxed(3),
        "rounding": vip_allocation_measured.rounding("rloo", 2, highs=(12,)),
    }


def hora():
    """HORA's arms with what is read of a trained policy."""
    arms = (("pre_4", "rloo"), ("pre_4", "grpo"), ("uniform", "rloo"), ("gp", "rloo"))
    read = partial(hora_measured.explored, held_out=12, problems=4)
    return {f"{name} {e}": small(hora_measured.RULES[name], read, estimator=e) for name, e in arms}


def hora_hits():
    """Hits of HORA and its rivals, its calibration, its theory, and the runs along which they are read."""
    beliefs, pool = {}, hora_hits_measured.long_pool(0)
    for name, make in hora_hits_measured.LEARNED.items():
        learned = make()
        for _, batch in batches(prompts=len(SUCCESS)):
            learned.update(batch)
        beliefs[name] = learned.predict(batch.prompts)
    return {
        "gains": {
            name: hora_hits_measured.gain(SUCCESS, rule(), 8, 10, 0).tolist()
            for name, rule in hora_hits_measured.rules(beliefs).items()
        },
        "allocation": hora_hits_measured._allocation(SUCCESS, 0),
        "calibration": hora_hits_measured._calibration(SUCCESS),
        "theory": hora_theory_measured.theory(),
        "long pool": [[each.text for each in some[:4]] for some in (pool.problems, pool.held_out)],
        "run": small({"name": "uniform", "rollouts_per_prompt": 8}),
        "long run": small(partial(HORA, rollouts_per_prompt=16, pre_rollouts=8), estimator="grpo"),
    }


class Followed(DoubleTrainer, ar3po_lab.FollowedTrainer):
    """A small trainer that notes what each step asked for."""


def ar3po():
    """AR3PO's arms, and its counts in closed form."""

    def spent(trainer, _):
        return {key: [each[key] for each in trainer.notes] for key in ("asked", "dropped")}

    rules = {reuse: {"name": "ar3po", "reuse": reuse} for reuse in ("stop_gradient", "recompute", "replay", "none")}
    rules["dapo"] = {"name": "dapo", "rollouts_per_prompt": 8, "target": 4}
    return {
        **{name: small(rule, spent, Followed, estimator="grpo") for name, rule in rules.items()},
        "arithmetic": ar3po_counts.arithmetic(),
        "stages": ar3po_counts.stages(),
        "expected": ar3po_counts._expected(np.arange(9), 2, 4).tolist(),
        "mixed": ar3po_counts._mixed(np.arange(9), 4).tolist(),
    }


def optpo():
    """Votes that train, under each update."""
    arms = {"ttrl": (MATCHED["ttrl_64"], {}), "grpo": (MATCHED["optpo"], {})}
    arms |= {name: (MATCHED["optpo"], changes) for name, changes in UPDATES.items()}
    return {name: small(rule, ends, **{**VOTES, "rollouts": None, **own}) for name, (rule, own) in arms.items()}


def optpo_combined():
    """The calibrated stop and its rivals in training, and the bias of votes that stop early."""
    found = {name: small(rule, ends, **VOTES, rollouts=None) for name, rule in COMBINED.items()}
    return {**found, "bias": optpo_combined_measured.bias(prompts=3)}


def ends(_, run):
    """Return what is read at the end of a run without labels."""
    return {key: run.final(key) for key in (*optpo_learning_measured.ENDS, "pass_1")}


def optpo_votes():
    """The measures of 12 recorded votes."""
    rows = [row for row in read_vendored() if row["dataset"] == "game24_cot"][:12]
    return optpo_votes_measured.measures(Streams.draw(map(Question.of, rows), 2, 0))


def optpo_theory():
    """Wald's test under the paper's model, and votes with four choices."""
    return {"wald": optpo_votes_measured.wald(), "four choices": optpo_votes_measured.four_choices()}


def language_model():
    """What the rules decide and compute that train SmolLM2, what is foreseen, and the statistics of norms."""
    optimal, found = Optimal(), {}
    foreseen = {"moving average": MovingAverage(), "gp": GaussianProcess(hora_measured.problem_features)}
    for asked, batch in batches():
        baseline = optimal.predict(asked)
        found = {name: each.predict(asked).mean.tolist() for name, each in foreseen.items()}
        for each in (optimal, *foreseen.values()):
            each.update(batch)
    groups = [Group(prompt, tuple(rollouts)) for prompt, rollouts in zip(asked, batch.rollouts, strict=True)]
    unit, rewards = np.repeat(np.arange(len(groups)), 8), np.concatenate([group.rewards for group in groups])
    norms = np.array([rollout.score_norm for group in groups for rollout in group.rollouts])
    _, p = correlations(unit, rewards, norms)
    return found | {
        "baseline": baseline.tolist(),
        "uniform": [Uniform(each).plan(Uniform(each).start(asked)).counts.tolist() for each in (1, 4, 8)],
        "rloo": advantages_of(groups)[:24].tolist(),
        "reinforce": advantages_of(groups, "reinforce", baseline=baseline)[:24].tolist(),
        "tests": [fisher(p), edgington(p), levene(unit, norms), obrien(unit, norms)],
    }


def combinations():
    """A few steps of each arm."""
    return {name: small(rule, **settings) for name, (rule, settings) in combinations_measured.ARMS.items()}


CANARIES: Mapping[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        *(controls, vip_learning, vip_prediction, vip_assumptions, vip_allocation, hora, hora_hits, ar3po),
        *(optpo, optpo_votes, optpo_theory, language_model, combinations, optpo_combined),
    )
}
"""The canaries by the names of their files."""


def figures(name):
    """Return the figures of a canary, rounded."""
    return rounded(json.loads(json.dumps(CANARIES[name](), default=np.ndarray.tolist)), DIGITS)


def differences(kept, found, place=""):
    """Yield the places at which two canaries differ by more than rounding on another machine."""
    if isinstance(kept, dict) and isinstance(found, dict) and kept.keys() == found.keys():
        for key in kept:
            yield from differences(kept[key], found[key], f"{place}/{key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (mine, theirs) in enumerate(zip(kept, found, strict=True)):
            yield from differences(mine, theirs, f"{place}/{number}")
    elif isinstance(kept, int | float) and isinstance(found, int | float):
        if not math.isclose(kept, found, rel_tol=CLOSE, abs_tol=CLOSE**2):
            yield place
    elif kept != found:
        yield place


def keep():
    """Compute all canaries. Write those that differ from what is kept, and return their names."""
    known = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    found = {name: figures(name) for name in CANARIES}
    changed = [name for name in found if [*differences(known.get(name), found[name])]]
    write_lines(KEPT, {name: (found if name in changed else known)[name] for name in found})
    return changed
