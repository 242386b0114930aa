"""Score norms of SmolLM2's completions before training and after it, and what VIP's assumptions say about them.

The norms before training are recorded in ``benchmarks/data``. The norms after training are measured here, on every
other one of the same prompts. ``Samples`` holds rewards of 0 and 1 and norms, [P, n], of n completions of P prompts.
"""

from __future__ import annotations

import numpy as np
import torch

from apportion import VIP, Prompt, Rollout
from apportion.allocators import Neyman
from apportion.types import Batch, Belief, Plan
from benchmarks.baselines import BINS, recorded
from benchmarks.baselines_measured import MEASURES, SAMPLES, TASKS, sample, scores
from benchmarks.baselines_rules import Samples
from benchmarks.evidence.language_model_measured import train
from benchmarks.evidence.language_model_policy import example_tokens, share_examples
from benchmarks.evidence.vip_tests import correlations, edgington, fisher, levene, obrien

AFTER_TASKS = TASKS[:2]
TRAINED_SEED, TRAINED_ROLLOUTS = 100, 320
"""Held-out success hardly changes afterwards, up to 640 rollouts."""
GROUP = 8
"""Rollouts of a prompt in VIP's variance, and half of the samples."""
DRAWS, SPLITS, RESAMPLES = 2000, 200, 1000
LIMITS = (0.025, 0.975)


def before():
    """Return what the recorded norms say, by task."""
    return {task: described(samples) for task, samples in recorded().items()}


def after():
    """Train on sums with uniform groups of 8, and return what the norms say then, by task."""
    watch, trainer = train("uniform_8", 1e-5, TRAINED_SEED, TRAINED_ROLLOUTS)
    model = trainer.model.eval()
    found = {}
    for place, task in enumerate(AFTER_TASKS):
        share_examples(model, example_tokens(watch.tokenizer, task))
        found[task.name] = described(measured(model, watch.tokenizer, task.questions(place)[::2]))
    return found


def measured(model, tokenizer, questions):
    """Return samples of a model that puts the solved examples before each question by itself."""
    torch.manual_seed(TRAINED_SEED)
    ends = list(model.generation_config.eos_token_id)
    rewards = np.empty((len(questions), SAMPLES))
    norms = np.empty((len(MEASURES), len(questions), SAMPLES))
    for q, (question, answer) in enumerate(questions):
        prompt = tokenizer(question, return_tensors="pt").input_ids
        known: dict[tuple[int, ...], list[float]] = {}
        for s, tokens in enumerate(sample(model, prompt, ends)):
            if tokens not in known:
                known[tokens] = scores(model, prompt, tokens)
            rewards[q, s] = tokenizer.decode(tokens).split("\n")[0].strip() == answer
            norms[:, q, s] = known[tokens]
    return Samples(rewards, dict(zip(MEASURES, norms, strict=True)))


def described(samples):
    """Return all statistics of one task at one checkpoint. VIP's Z is the norm of the mean over tokens, as printed."""
    z = np.sqrt(samples.measures["parameters"]) / samples.measures["tokens"]
    return {
        "by_success": by_success(samples),
        "tests": {"mean over tokens": assumption_tests(samples.rewards, z)},
        "variance": {"mean over tokens": variance_ratios(samples.rewards, z)},
        "allocation": allocations(samples),
    }


def by_success(samples):
    """Return the mean norms of right and of wrong completions, by success rate, with 95% over prompts."""
    rates = samples.rewards.mean(1)
    places = np.minimum(np.searchsorted([high for _, high in BINS], rates, side="right"), len(BINS) - 1)
    found = []
    for place in range(len(BINS)):
        rewards = samples.rewards[places == place]
        norms = {name: samples.measures[name][places == place] for name in ("parameters", "logits", "squared")}
        found.append(
            {
                name: {"right": _mean_of(own, rewards), "wrong": _mean_of(own, 1 - rewards)}
                for name, own in norms.items()
            }
        )
    return found


def assumption_tests(rewards, z):
    """Return the p-values of the paper's four tests (Appendix B), and the mean correlation with 95%."""
    groups = np.repeat(np.arange(len(z)), z.shape[1])
    r, p = correlations(groups, rewards.ravel(), z.ravel())
    return {
        "fisher": fisher(p)[1] if len(p) else None,
        "edgington": edgington(p)[1] if len(p) else None,
        "levene": levene(groups, z.ravel())[1],
        "obrien": obrien(groups, z.ravel())[1],
        "correlation": interval_over(r, np.mean),
    }


def variance_ratios(rewards, z):
    """Return the variance of VIP's projected gradient over Proposition 4.3's, with 95% over prompts.

    It is that of groups of ``GROUP`` drawn from a prompt's samples, summed over prompts. ``apart`` is the control, for
    which rewards and sizes are drawn apart, so that they are uncorrelated. The ratio is the same for Proposition 4.2,
    because Dr. GRPO's gradient is (n - 1) / n times RLOO's, and its formula has the square of that.
    """
    mixed = _mixed(rewards)
    signs, z = 2 * rewards[mixed] - 1, z[mixed]
    rates, n = rewards[mixed].mean(1), GROUP
    drawn = np.random.default_rng(0).integers(signs.shape[1], size=(2, len(signs), DRAWS * n))
    rows = np.arange(len(signs))[:, None]
    r = signs[rows, drawn[0]].reshape(-1, DRAWS, n)
    advantages = (r - r.mean(2, keepdims=True)) * n / (n - 1)
    formula = 4 * z.var(1) * rates * (1 - rates) / (n - 1)
    found, apart = (
        np.stack([(advantages * z[rows, each].reshape(r.shape)).mean(2).var(1), formula], 1) for each in drawn
    )
    return {
        "all": interval_over(found, _ratio_of_sums),
        "below half": interval_over(found[rates < 0.5], _ratio_of_sums),
        "above half": interval_over(found[rates > 0.5], _ratio_of_sums),
        "apart": interval_over(apart, _ratio_of_sums),
    }


def allocations(samples):
    """Return the gradient variance under allocations over that of uniform groups, out of sample: median and 90%.

    A rule learns from half of each prompt's completions. Its counts are judged on the other half by the sum over
    prompts of v / n, v the mean of (reward - mean of the others)^2 |score|^2. The best counts know the half that
    judges.
    """
    prompts = [Prompt(str(q)) for q in range(len(samples.rewards))]
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {
        name: [] for name in ("VIP", "VIP, shuffled", "Neyman", "Neyman, shuffled", "best")
    }
    for _ in range(SPLITS):
        columns = rng.permuted(np.tile(np.arange(2 * GROUP), (len(prompts), 1)), axis=1)
        history, judged = (samples.at(np.arange(len(prompts)), part) for part in np.split(columns, 2, axis=1))
        v = second_moment(judged)
        if not v.sum() > 0:
            continue
        for name, rule in (("VIP", VIP(rollouts_per_prompt=GROUP)), ("Neyman", Neyman(rollouts_per_prompt=GROUP))):
            counts = planned(rule, prompts, history)
            for kind, each in ((name, counts), (f"{name}, shuffled", rng.permutation(counts))):
                found[kind].append(float((v / each).sum() * GROUP / v.sum()))
        best = best_counts(v, GROUP * len(prompts))
        found["best"].append(float((v / best).sum() * GROUP / v.sum()))
    return {name: [float(np.median(each)), *np.quantile(each, (0.05, 0.95)).tolist()] for name, each in found.items()}


def second_moment(samples):
    """Return the mean of (reward - mean of the others)^2 |score|^2 of each prompt, [P]."""
    number = samples.rewards.shape[1]
    others = (samples.rewards.sum(1, keepdims=True) - samples.rewards) / (number - 1)
    return ((samples.rewards - others) ** 2 * samples.measures["parameters"]).mean(1)


def planned(rule, prompts, history):
    """Return the counts [P] that a rule plans after a batch with ``history``, whose norms are free ones."""
    free = history.measures["squared"]
    rollouts = [
        [Rollout(bool(reward), score_norm=float(norm)) for reward, norm in zip(*row, strict=True)]
        for row in zip(history.rewards, free, strict=True)
    ]
    empty = Batch.start(prompts, Belief.uniform(len(prompts)))
    rule.observe(empty.add(Plan(np.full(len(prompts), history.rewards.shape[1])), rollouts))
    return rule.plan(rule.start(prompts)).counts


def best_counts(v, budget, low=3):
    """Return the counts [P], at least ``low`` each and ``budget`` in all, with the least sum of v / n.

    >>> best_counts(np.array([0.0, 1.0, 4.0]), 15).tolist()
    [3, 4, 8]
    """
    counts = np.full(len(v), low)
    for _ in range(budget - counts.sum()):
        counts[np.argmax(v / (counts * (counts + 1)))] += 1
    return counts


def interval_over(values, statistic):
    """Return a statistic of ``values`` [P, ...] and its 95% interval over prompts, resampled; None without any."""
    if len(values) < 3:
        return None
    rng = np.random.default_rng(0)
    drawn = [statistic(values[rng.integers(len(values), size=len(values))]) for _ in range(RESAMPLES)]
    return [float(statistic(values)), *np.quantile(drawn, LIMITS).tolist()]


def _mean_of(norms, which):
    """Return the mean of ``norms`` [P, n] of the completions ``which`` [P, n], with 95% over prompts."""
    mine = which.any(1)
    return interval_over(np.stack([(norms * which).sum(1), which.sum(1)], 1)[mine], _ratio_of_sums)


def _ratio_of_sums(pairs):
    top, bottom = pairs.sum(0)
    return float(top / bottom) if bottom else 0.0


def _mixed(rewards):
    return (rewards.min(1) < 1) & (rewards.max(1) > 0)
