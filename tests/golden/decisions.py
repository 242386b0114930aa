"""What every rule decides, on a recorded run, on a seeded stream of many sizes, and on recorded votes.

The names come from the registries, so that a rule without a record, and a record without a rule, are differences.
"""

import gzip
import json
import tomllib
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random

import numpy as np

from apportion import presets
from apportion.advantages import ESTIMATORS, advantages_of, gae, loss_weights, whiten
from apportion.allocators import ALLOCATORS, Allocator
from apportion.baselines import BASELINES
from apportion.config import build
from apportion.predictors import PREDICTORS, PrecomputedEmbeddings
from apportion.selection import SELECTORS
from apportion.solve import METHODS, solve
from apportion.stopping import RULES, decide
from apportion.types import Group, Plan, Prompt, Rollout
from tests.rules import IN_TOKENS, in_tokens, small_settings

ROOT = Path(__file__).parents[2]
SIZES = (1, 2, 4, 16, 128, 2, 16)
"""Prompts of each step of the stream. The later steps see prompts again."""

POOL = 160
GIVEN = {0: 0.0, 1: 1.0, 2: 0.5, 3: 0.0, 4: 0.02, 5: 0.98}
"""Success rates of the first prompts, 0 and 1 among them. The others are drawn."""

RECORDED_PROMPTS, RECORDED_STARTED, RECORDED_VISITS = 400, 16, 3
VOTES, VOTE_STREAMS = 32, 60
LARGE = 2_000
"""Arrays of a state with more numbers are kept as their shape, their norm and a hundred of their numbers."""


def rate(q):
    return GIVEN.get(q, Random(f"rate {q}").random())


@cache
def pool():
    """Return the prompts of the stream. Every third one has a known rate."""
    return tuple(Prompt(f"prompt {q}", rate=rate(q) if q % 3 == 0 else None) for q in range(POOL))


@cache
def embeddings():
    """Return embeddings whose first dimension tells the rate, and whose others tell nothing."""
    rows = [[2 * rate(q) - 1, *(Random(f"embedding {q} {d}").gauss(0, 1) for d in range(3))] for q in range(POOL)]
    return PrecomputedEmbeddings.from_array(list(pool()), rows)


def rollout(name, success, graded, failing=0.1):
    """Return the rollout of this name, the same whenever it is drawn; None if it failed."""
    draw = Random(name)
    failed, correct = draw.random() < failing, draw.random() < success
    answer = None if draw.random() < 0.05 else "right" if correct else f"wrong {draw.randrange(3)}"
    reward = round(draw.random() * (0.5 + 0.5 * success), 3) if graded else None
    tokens, norm = 1 + draw.randrange(200), draw.random() * (2 - success)
    verdict = None if graded else correct
    return None if failed else Rollout(verdict, answer=answer, reward=reward, tokens=tokens, score_norm=norm)


def sampler(success, graded, word):
    """Return a sampler whose i-th rollout of a prompt is the same in any order of requests."""
    drawn = {}

    def sample(prompts, counts):
        groups = []
        for prompt, count in zip(prompts, counts, strict=True):
            first = drawn.get(prompt.id, 0)
            drawn[prompt.id] = first + int(count)
            numbers = range(first, first + int(count))
            made = (rollout(f"{word} {prompt.text} {i}", success(prompt), graded) for i in numbers)
            groups.append([each for each in made if each is not None])
        return groups

    return sample


@cache
def recorded():
    """Return the first prompts of the recorded run with their known rates, and how many of 8 were right a visit."""
    with gzip.open(ROOT / "examples" / "data" / "grpo_run.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(RECORDED_PROMPTS), strict=False)]
    prompts = tuple(Prompt(row["prompt"], id=row["id"], rate=row["rate"]) for row in rows)
    return prompts, tuple(tuple(row["correct_of_8"][:RECORDED_VISITS]) for row in rows)


def stream(graded):
    """Yield the prompts of each step, their sampler, and fresh prompts."""
    prompts, order = pool(), Random("order")
    for step, size in enumerate(SIZES):
        chosen = sorted(order.sample(range(POOL), size)) if size > 4 else list(range(step, step + size))
        others = [prompts[q] for q in range(POOL) if q not in chosen]
        sample = sampler(lambda prompt: rate(int(prompt.text.split()[1])), graded, f"stream {step}")
        yield [prompts[q] for q in chosen], sample, iter(others)


def recorded_run():
    prompts, right = recorded()
    for visit in range(RECORDED_VISITS):
        rates = {prompt.id: right[q][visit] / 8 for q, prompt in enumerate(prompts)}
        sample = sampler(lambda prompt, rates=rates: rates[prompt.id], False, f"recorded {visit}")
        yield list(prompts[:RECORDED_STARTED]), sample, iter(prompts[RECORDED_STARTED:])


def plain(value):
    """Return JSON data: arrays as lists, dataclasses as their fields, keys as text, floats with 12 digits."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray) and value.size > LARGE:
        flat = value.astype(np.float64).ravel()
        some = flat[:: value.size // 97]
        return {"shape": list(value.shape), "norm": plain(np.linalg.norm(flat)), "some": plain(some)}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return value.hex() if isinstance(value, bytes) else value


def course(allocator, steps):
    """Return the counts of each round, the fresh prompts, the groups, the beliefs and the last state."""
    found = []
    for prompts, sample, others in steps:
        batch = allocator.start(prompts)
        belief, rounds = batch.belief, []
        while plan := allocator.plan(batch):
            rounds.append({"fresh": plan.fresh} if plan.fresh else plan.counts.tolist())
            if plan.fresh:
                batch = batch.join(allocator.start([next(others) for _ in range(plan.fresh)]))
            else:
                batch = batch.add(plan, sample(batch.prompts, plan.counts))
        groups = allocator.groups(batch)
        found.append(
            {
                "rounds": rounds,
                "belief": [belief.mean.tolist(), belief.variance.tolist()],
                "final": allocator.final(batch, Plan(np.zeros(len(batch.prompts)))).tolist(),
                "groups": [group.prompt.text for group in groups],
                "rewards": ["".join(f"{reward:g} " for reward in group.rewards) for group in groups],
                "keep": ["".join("01"[int(kept)] for kept in group.keep) for group in groups],
                "recompute": ["".join("01"[int(kept)] for kept in group.recompute) for group in groups],
                "metrics": plain(allocator.metrics(batch)),
            }
        )
        allocator.observe(batch)
    return {"steps": found, "state": plain(allocator.state_dict())}


def allocators():
    """Each rule with small settings and at its defaults; with the belief for graded rewards, and in tokens."""
    found = {}
    for name, rule in ALLOCATORS.items():
        small = partial(lambda name, **own: build(Allocator, small_settings(name, **own)), name)
        found[name] = {"small, stream": course(small(), stream(False)), "recorded": course(small(), recorded_run())}
        found[name]["default, recorded"] = course(build(Allocator, name).with_budget(8), recorded_run())
        found[name]["sizes"] = {str(size): plain(small().size(size)) for size in (1, 2, 4, 16, 128)}
        graded = {"predictor": "running_variance"} if "predictor" in {each.name for each in fields(rule)} else {}
        if not small(**graded).needs.binary and small(**graded).needs.labels:
            found[name]["graded"] = course(small(**graded), stream(True))
        if name in IN_TOKENS:
            found[name]["tokens"] = course(replace(in_tokens(small()), tokens_per_prompt=341), stream(False))
    return found


def fed(graded):
    """Yield the batches of an even split along the stream: what learners are shown."""
    for prompts, sample, _ in stream(graded):
        batch = build(Allocator, {"name": "uniform", "rollouts_per_prompt": 6}).start(prompts)
        plan = Plan(np.full(len(prompts), 6))
        yield batch.add(plan, sample(batch.prompts, plan.counts))


def made(cls):
    """Return a learner at its defaults, with the embeddings and the predictor that it cannot do without."""
    given = {}
    for each in fields(cls):
        if each.name == "embedder":
            given["embedder"] = embeddings()
        elif each.name == "predictor" and each.default is MISSING and each.default_factory is MISSING:
            given["predictor"] = PREDICTORS["counts"]()
    return cls(**given)


def predicted(predictor, graded):
    found = []
    predictor.prepare(list(pool()))
    for batch in fed(graded):
        belief = predictor.predict(batch.prompts)
        rewards = predictor.expected_rewards(batch.prompts)
        found.append({"alpha": belief.alpha, "beta": belief.beta, "variance": belief.variance, "rewards": rewards})
        predictor.update(batch)
    return {"beliefs": plain(found), "state": plain(predictor.state_dict())}


def predictors():
    found = {}
    for name, cls in PREDICTORS.items():
        found[name] = {"binary": predicted(made(cls), False)}
        if not made(cls).needs.binary:
            found[name]["graded"] = predicted(made(cls), True)
        if name != "shuffled" and "embedder" in {each.name for each in fields(cls)} and name == "empirical_bayes":
            found[name]["without embeddings"] = predicted(cls(), False)
    return found


def baselines():
    found = {}
    for name, cls in BASELINES.items():
        for kind in ("binary", "graded"):
            baseline = made(cls)
            if kind == "graded" and baseline.needs.binary:
                continue
            baseline.prepare(list(pool()))
            values = []
            for batch in fed(kind == "graded"):
                values.append(baseline.predict(batch.prompts).tolist())
                baseline.update(batch)
            found[f"{name}, {kind}"] = {"values": values, "state": plain(baseline.state_dict())}
    return found


def selectors():
    """Each rule chooses at every size, with prompts in flight, on data that holds a prompt twice."""
    found = {}
    for name, cls in SELECTORS.items():
        selector, prompts = cls(), [*pool(), pool()[7]]
        selector.prepare(prompts, 3)
        steps = []
        for step, size in enumerate((1, 2, 2, 4, 16, 128, 1, 2, 4, 16, 16)):
            rows = selector.choose(size, held=[prompts[9].id, prompts[10].id])
            chosen = [prompts[row] for row in rows]
            sample = sampler(lambda prompt: rate(int(prompt.text.split()[1])), False, f"selection {step}")
            batch = build(Allocator, {"name": "uniform", "rollouts_per_prompt": 4}).start(chosen)
            plan = Plan(np.full(size, 4))
            if step != 3:  # the outcome of one choice never arrives
                selector.observe(batch.add(plan, sample(chosen, plan.counts)))
            weights = selector.weights(chosen)
            steps.append({"rows": rows, "weights": plain(weights), "metrics": plain(selector.metrics())})
        found[name] = {"steps": steps, "state": plain(selector.state_dict())}
    return found


@cache
def votes():
    """Return streams of recorded answers to the Game of 24, and made ones: all equal, none, a tie, a late turn."""
    with gzip.open(ROOT / "benchmarks" / "data" / "game24_votes.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(VOTE_STREAMS), strict=False)]
    kept = [next(value for value in row.values() if isinstance(value, list))[:VOTES] for row in rows]
    half = VOTES // 2
    return [*kept, ["a"] * VOTES, [None] * VOTES, ["a", "b"] * half, ["a"] * (half - 1) + ["b"] * (half + 1), ["a"]]


def stopping():
    own = tomllib.loads("""
        optpo = [{min_samples = 8}, {min_samples = 4, exceedances = 1}]
        calibrated = [{eps = 0.05}]
        posterior_predictive = [{eps = 0.1}]
        esc = [{window = 4}]
        adaptive_consistency_beta = [{confidence = 0.8}]
    """)
    found = {}
    chosen = [(name, settings) for name in RULES for settings in ({}, *own.get(name, []))]
    for (name, settings), wave, curtail in product(chosen, (1, 6, "free"), (False, True)):
        ended = decide(votes(), name, VOTES, wave=wave, curtail=curtail, **settings)
        key = f"{name} {settings} wave {wave}{', curtailed' * curtail}"
        found[key] = {"samples": ended.samples, "answers": ended.answer, "waves": ended.waves}
    return found


def estimators():
    """Advantages of ragged groups of all sizes, with equal rewards, single rollouts and several rounds among them."""
    found = {}
    for kind in ("binary", "graded"):
        groups = []
        for step, (prompts, sample, _) in enumerate(stream(kind == "graded")):
            counts = [1 + (q + step) % 7 for q in range(len(prompts))]
            for prompt, group in zip(prompts, sample(prompts, counts), strict=True):
                rounds = [replace(one, round=i // 2) for i, one in enumerate(group)]
                groups += [Group(prompt, tuple(rounds))] * bool(rounds)
        for name in ESTIMATORS:
            baseline = [rate(i) for i in range(len(groups))] if name in ("reinforce", "spo") else None
            found[f"{name}, {kind}"] = advantages_of(groups, name, baseline=baseline).tolist()
        tokens = np.array([float(r.tokens or 0) for group in groups for r in group.rollouts])
        for weighting in ("prompt", "rollout", "token"):
            for reduction in ("sum", "mean"):
                weights = loss_weights(groups, weighting, tokens=tokens, reduction=reduction)
                found[f"weights by {weighting} and {reduction}, {kind}"] = plain(weights)
        rewards = np.concatenate([group.rewards for group in groups])
        found[f"whitened, {kind}"] = plain(whiten(rewards, 1.0 + np.arange(len(rewards)) % 3))
    draw = Random("gae")
    tokens, values = (np.array([[draw.random() for _ in range(6)] for _ in range(3)]) for _ in range(2))
    mask = np.arange(6) < np.array([[6], [4], [1]])
    found["gae"] = plain(gae(tokens, values, mask, gamma=0.99, lam=0.95))
    return found


def single_calls():
    """``solve`` by every method, at sizes from one prompt to 128, and the presets."""
    found = {}
    for size in (1, 2, 4, 16, 128):
        rates = [rate(q) for q in range(size)]
        for method in METHODS:
            for estimator in ("rloo", "dr_grpo"):
                if method == "hora":
                    trials = [2 + q % 3 for q in range(size)]
                    right = [round(p * n) for p, n in zip(rates, trials, strict=True)]
                    given = {"success": None, "successes": right, "trials": trials}
                else:
                    given = {"success": rates}
                solved = solve(**given, budget=8 * size, method=method, estimator=estimator, high=20)
                found[f"{method} {estimator} {size}"] = plain(solved)
    for name in ("vip_as_printed", "spo", "mopps_with_refill"):
        arguments = getattr(presets, name)().arguments()
        found[name] = {key: repr(value) for key, value in arguments.items()}
    return found


def record():
    """Return every decision, as JSON data."""
    parts = (allocators, predictors, baselines, selectors, stopping, estimators, single_calls)
    return {part.__name__: plain(part()) for part in parts}
