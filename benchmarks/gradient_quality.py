"""Measure the gradient that a stopped vote gives (OptPO), and that of AR3PO's options, against the true gradient.

The true gradient is that of the success probability, whose right completions can be listed. A batch's gradient is the
mean over its prompts, and the draws of all rules share their rollouts. With g a draw and t the true gradient:
bias = |E g - t|^2 / |t|^2, variance = E|g - E g|^2 / |t|^2, kept = E g . t / |t|^2.

    python -m benchmarks.gradient_quality
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import copy
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from apportion.allocators import AR3PO, TTRL, OptPO, Uniform
from apportion.allocators.ar3po import Reuse
from apportion.allocators.votes import ConsensusAllocator
from apportion.lab.measure.gradients import completion_gradients
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success, solution_probabilities
from apportion.lab.policy.network import completion_logprobs
from apportion.lab.policy.recipes import task_of
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.training.loss import TrainingRow, refresh_logprobs, training_rows
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import EOS, TASKS, encode, training_problems
from apportion.loop import collect
from apportion.types import Plan
from benchmarks.common import RESULTS, options, spread, write

SEEDS, PROMPTS, VOTE_DRAWS, REUSE_DRAWS, MOST = (0, 1, 2, 3, 4, 5), 12, 6, 10, 64
VOTES: dict[str, ConsensusAllocator] = {
    **{f"TTRL, {n} votes": TTRL(max_samples=n, min_samples=32) for n in (32, MOST)},
    "OptPO": OptPO(min_samples=32, max_samples=MOST, alpha=0.05, beta=0.05),
}
OPTIONS: dict[str, Reuse] = {"Option II": "stop_gradient", "Option I": "recompute", "direct replay": "replay"}
STEPS, POOL, STAGE = 24, 512, 4
"""Training steps between the stored responses and the present policy, problems of the run, rollouts of a stage."""
MEASURES = ("cosine", "kept", "bias", "variance", "scale")
RELATIVE = ("kept", "bias", "variance", "equal")
Values = dict[str, float]

Votes = dict[str, list[dict[str, Values]]]
Reused = dict[str, list[dict[str, Values]]]
"""The measures by base, seed, and rule."""

Entry = tuple[int, int, TrainingRow]
"""A rule, a draw, and a rollout in its loss."""


def solutions_of(policy, problem):
    """Return every right completion with its log-probabilities."""
    texts = [(*encode(solution), EOS) for solution in problem.solutions]
    logprobs = completion_logprobs(policy, [encode(problem.text)] * len(texts), texts)[0].detach().numpy()
    return [LedgerCompletion(text, own[: len(text)], True) for text, own in zip(texts, logprobs, strict=True)]


def qualities(policy, problems, entries, rules, draws):
    """Return the measures of each rule. ``entries`` has a list for each problem, whose rows have weights of sum 1."""
    size = sum(parameter.numel() for parameter in policy.parameters())
    total, truth, variance = torch.zeros(rules * draws, size), torch.zeros(size), np.zeros(rules)
    for problem, chances, own in zip(problems, solution_probabilities(policy, problems), entries, strict=True):
        right = completion_gradients(policy, encode(problem.text), solutions_of(policy, problem))
        truth += torch.from_numpy(chances).float() @ right
        distinct = {(row.completion.tokens, row.reused and not row.recompute): row for *_, row in own}
        columns = {key: column for column, key in enumerate(distinct)}
        weights = np.zeros((rules, draws, len(distinct)))
        for rule, draw, row in own:
            key = (row.completion.tokens, row.reused and not row.recompute)
            weights[rule, draw, columns[key]] += row.advantage * row.weight
        if distinct:
            rows = refresh_logprobs(policy, list(distinct.values()))
            gradients = completion_gradients(policy, encode(problem.text), [row.completion for row in rows])
            total += torch.from_numpy(weights.reshape(rules * draws, -1)).float() @ gradients
            centred = weights - weights.mean(1, keepdims=True)
            gram = (gradients @ gradients.T).double().numpy()
            variance += ((centred @ gram) * centred).sum((1, 2)) / (draws - 1)
    total, truth, variance = total / len(problems), truth / len(problems), variance / len(problems) ** 2
    scale = float(truth @ truth)
    found = []
    for own, spread_out in zip(total.view(rules, draws, size), variance.tolist(), strict=True):
        along, norms, mean = own @ truth, own.norm(dim=1), own.mean(0)
        away = float((mean - truth).square().sum()) - spread_out / draws  # without the part that is chance
        own_measures = (
            float((along / (norms * scale**0.5).clamp(min=1e-30)).mean()),
            float(mean @ truth) / scale,
            away / scale,
            spread_out / scale,
            scale,
        )
        found.append(dict(zip(MEASURES, own_measures, strict=True)))
    return found


def rows_of(group):
    """Return the rollouts of one group that have a gradient. Their weights are those of a loss of this group alone."""
    return [row for row in training_rows([group], "rloo") if row.advantage]


def vote_quality(base, seed, prompts=PROMPTS, draws=VOTE_DRAWS):
    """Return the measures of every vote on one set of prompts."""
    policy, problems = base_policy(base), training_problems(prompts, seed)
    asked = [problem.prompt() for problem in problems]
    place = {prompt.id: q for q, prompt in enumerate(asked)}
    rollouts = LedgerSampler(policy, seed)(asked, [draws * MOST] * prompts)
    entries: list[list[Entry]] = [[] for _ in problems]
    found: dict[str, Values] = {name: {"rollouts": 0.0} for name in VOTES}
    for draw in range(draws):
        streams = [own[draw * MOST : (draw + 1) * MOST] for own in rollouts]
        for rule, (name, allocator) in enumerate(VOTES.items()):
            left = [iter(own) for own in streams]
            batch = collect(
                allocator, asked, lambda _, n, left=left: [[*islice(*each)] for each in zip(left, n, strict=True)]
            )
            found[name]["rollouts"] += float(batch.asked.mean()) / draws
            for group in allocator.groups(batch):
                entries[place[group.prompt.id]] += [(rule, draw, row) for row in rows_of(group)]
    for name, own in zip(VOTES, qualities(policy, problems, entries, len(VOTES), draws), strict=True):
        found[name] |= own
        found[name]["equal"] = own["bias"] + own["variance"] * found[name]["rollouts"] / MOST
    return found


def reuse_quality(base, seed, prompts=PROMPTS, draws=REUSE_DRAWS, steps=STEPS, pool=POOL):
    """Return the measures of AR3PO's options on groups without a right rollout.

    The responses are stored under the base. The present policy is ``steps`` steps of uniform groups of 8 away. Prompts
    are those of one pass that hold a response and have a group without a right one. Their groups are then drawn anew.
    """
    longest = TASKS[task_of(base)].max_new_tokens
    settings = Training(
        base, problems=pool, prompts_per_step=16, steps=steps, held_out=1, evaluate_every=steps, rollout_log="none"
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, Uniform(2 * STAGE), seed, Path(folder))
        before, policy, every = copy.deepcopy(trainer.policy), trainer.policy, list(trainer.prompts)
        trainer.run()
    old, sampler = LedgerSampler(before, seed, 1.0, longest), LedgerSampler(policy, seed + 1, 1.0, longest)
    first = AR3PO(2, STAGE)
    stored = collect(first, every, old)
    first.observe(stored)
    passed = collect(AR3PO(2, STAGE), every, sampler)
    dead = [group.prompt for group in first.groups(passed) if any(r.step is not None for r in group.rollouts)]
    asked = dead[:prompts]
    problems = [prompt.data for prompt in asked]
    place = {prompt.id: q for q, prompt in enumerate(asked)}
    success = exact_success(policy, problems)
    wanted = np.ceil(1.5 * draws * 2 * STAGE / (1 - success) + 30).astype(int)
    wrong = [[r for r in own if not r.correct] for own in sampler(asked, wanted)]
    entries: list[list[Entry]] = [[] for _ in problems]
    for draw in range(draws):
        start, plan = first.start(asked), Plan([2 * STAGE] * len(asked))
        failed = start.add(plan, [own[draw * 2 * STAGE : (draw + 1) * 2 * STAGE] for own in wrong])
        for rule, kind in enumerate(OPTIONS.values()):
            option = AR3PO(2, STAGE, kind, seed=draw)
            option.observe(stored)
            for group in option.groups(failed):
                entries[place[group.prompt.id]] += [(rule, draw, row) for row in rows_of(group)]
    return dict(zip(OPTIONS, qualities(policy, problems, entries, len(OPTIONS), draws), strict=True))


def pooled(runs, measure):
    """Return the measure of each seed, whose mean is that of the table.

    Relative measures are ratios of sums over seeds, so that no seed with a small true gradient decides. Theirs are the
    jackknife's pseudo-values.
    """
    values = np.array([run[measure] for run in runs])
    if measure not in RELATIVE or len(runs) == 1:
        return values.tolist()
    scale = np.array([run["scale"] for run in runs])
    whole, left = values @ scale, scale.sum()
    without = (whole - values * scale) / (left - scale)
    return (len(runs) * whole / left - (len(runs) - 1) * without).tolist()


def gaps(votes, other, **names):
    """Return the mean differences of measures between OptPO and another vote, paired by seed."""
    found = []
    for base, runs in votes.items():
        apart = {name: [run["OptPO"][name] - run[other][name] for run in runs] for name in names}
        told = [f"{names[name]} {spread(own, '+.2f').replace('± +', '± ')}" for name, own in apart.items()]
        found.append(f"{', '.join(told)} ({base})")
    return "; ".join(found)


def report(votes, reuse, seeds, results=RESULTS):
    """Write the table."""
    shown, both = ("cosine", "variance"), {"rollouts": "rollouts", "cosine": "cosine"}
    write(
        "gradient_quality",
        "The gradient of a stopped vote, and of AR3PO's options",
        ["base", "groups", "reuse", *shown],
        [
            [base, "without a right one", name]
            + [spread(pooled([run[name] for run in runs], measure), ".2f") for measure in shown]
            for base, runs in reuse.items()
            for name in OPTIONS
        ],
        [
            f"The responses are stored under the base, {STEPS} training steps before the present policy (uniform "
            f"groups of {2 * STAGE}, 16 prompts a step of {POOL}, learning rate 5e-4). For each seed up to {PROMPTS} "
            "prompts that hold a response and had a group without a right one, and "
            f"{REUSE_DRAWS} new draws. RLOO, S = 2, k = 4. A group without a right one is {2 * STAGE} wrong rollouts, "
            "one of which the reused response replaces. Cosine is that of a batch's gradient and the true one. Means "
            "over seeds with 95% intervals.",
            "## Stopped votes",
            "- A stopped vote has the gradient of the full one. OptPO with N = 32 less 64 votes: "
            f"{gaps(votes, 'TTRL, 64 votes', **both)}.\n- Fewer votes do nearly as well. OptPO with N = 32 less 32 "
            f"votes: {gaps(votes, 'TTRL, 32 votes', **both, equal='error at 64 rollouts')}.",
        ],
        seeds=seeds,
        results=results,
    )


def main():
    """Measure, and write the table ``gradient_quality``."""
    arguments = options(__doc__, seeds=SEEDS, votes=("hard", "medium"), reuse=("hard",))
    torch.set_num_threads(1)
    votes = {base: [vote_quality(base, seed) for seed in arguments.seeds] for base in arguments.votes}
    reuse = {base: [reuse_quality(base, seed) for seed in arguments.seeds] for base in arguments.reuse}
    report(votes, reuse, arguments.seeds)


if __name__ == "__main__":
    main()
