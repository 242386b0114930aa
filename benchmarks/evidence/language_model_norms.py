"""Score norms of SmolLM2's completions before training and after it, and what VIP's assumptions say about them.

The norms before training are recorded in ``benchmarks/data``. The norms after training are measured here, on every
other one of the same prompts. ``Samples`` holds rewards of 0 and 1 and norms, [P, n], of n completions of P prompts.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.baselines import BINS, recorded
from benchmarks.baselines_measured import MEASURES, SAMPLES, TASKS, sample, scores
from benchmarks.baselines_rules import Samples
from benchmarks.evidence.language_model_measured import train
from benchmarks.evidence.language_model_policy import example_tokens, share_examples
from benchmarks.evidence.vip_tests import correlations, edgington, fisher, levene, obrien

AFTER_TASKS = TASKS[:2]
TRAINED_SEED, TRAINED_ROLLOUTS = 100, 320
"""Held-out success hardly changes afterwards, up to 640 rollouts."""
RESAMPLES = 1000
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
