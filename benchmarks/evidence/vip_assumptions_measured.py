"""VIP's tests of its assumptions (Appendix B) in the lab and on a language model, and its variance formula.

R is a rollout's reward and H the mean over its tokens of the gradient of their log-probabilities. The paper's Z is the
norm of H, and in Table 7 also the sum of its entries. Every test is also compared with shuffles, in which its null
hypothesis is true: rewards among the rollouts of a prompt, or deviations of Z among all rollouts.
"""

from __future__ import annotations

import numpy as np

from apportion.allocators import Uniform
from apportion.lab.policy.sampler import MAX_NEW_TOKENS, LedgerSampler
from apportion.lab.world.task import encode, training_problems
from benchmarks.baselines import LAB_SCORES, MODEL_SCORES
from benchmarks.evidence.learning import trainer_of
from benchmarks.evidence.vip_tests import correlations, edgington, fisher, levene, obrien
from benchmarks.gradients import completion_gradients

QUESTIONS, ROLLOUTS = 600, 16
POINTS = (0, 4_032, 9_600)
RATES = {"hard": 1e-3, "medium": 5e-4}
SHUFFLES, LEVEL = 999, 0.05
CHANCES, GROUP, GROUPS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97), 8, 200_000


def lab(base):
    """Return the tests at each of ``POINTS`` of a run, by rollouts trained on."""
    training = {
        "base": base,
        "prompts_per_step": 16,
        "rollouts": POINTS[-1],
        "learning_rate": RATES[base],
        "evaluate_every": 10**6,
        "held_out": 10,
    }
    problems = training_problems(QUESTIONS, seed=1)
    found = {}
    with trainer_of(Uniform(8), training, 0) as trainer:
        for point in POINTS:
            if point:
                trainer.run(lambda record, point=point: record["rollouts"] < point)
            right, norm, total = scored(trainer.policy, problems, seed=point)
            found[str(point)] = {**assumptions(right, norm), "sum of entries": assumptions(right, total)["variance"]}
    return found


def scored(policy, problems, seed):
    """Return rewards, norms of H, and sums of the entries of H, of fresh rollouts, each [questions, rollouts]."""
    groups = LedgerSampler(policy, seed)([problem.prompt() for problem in problems], [ROLLOUTS] * len(problems))
    rows = []
    for problem, group in zip(problems, groups, strict=True):
        distinct = {rollout.completion.tokens: rollout.completion for rollout in group}
        gradients = completion_gradients(policy, encode(problem.text), [*distinct.values()]).double()
        scale = [MAX_NEW_TOKENS / len(tokens) for tokens in distinct]
        norms = dict(zip(distinct, gradients.norm(dim=1).numpy() * scale, strict=True))
        sums = dict(zip(distinct, gradients.sum(1).numpy() * scale, strict=True))
        written = [each.completion.tokens for each in group]
        rows.append([[each.correct, norms[own], sums[own]] for each, own in zip(group, written, strict=True)])
    right, norm, total = np.moveaxis(np.array(rows, float), -1, 0)
    return right, norm, total


def model():
    """Return the tests on the recorded completions of SmolLM2-135M-Instruct, by task."""
    file = np.load(MODEL_SCORES)
    return {
        str(task): assumptions(file["right"][t].astype(float), np.sqrt(file["parameters"][t]) / file["tokens"][t])
        for t, task in enumerate(file["tasks"])
    }


def again(shuffles=199):
    """Return how many of the eight recorded runs of the lab reject, by base, rollouts trained on and test.

    They have 48 prompts with 16 rollouts. A test rejects if its shuffles do at a level of .05.
    """
    file = np.load(LAB_SCORES)
    found: dict[str, dict[str, int]] = {}
    for b, base in enumerate(file["bases"]):
        for p, point in enumerate(file["points"].tolist()):
            own = found.setdefault(f"{base}, {point}", {"runs": len(file["seeds"])})
            for s in range(len(file["seeds"])):
                right, squares, tokens = (file[key][b, p, s].astype(float) for key in ("right", "parameters", "tokens"))
                for kind in assumptions(right, np.sqrt(squares) / tokens, shuffles).values():
                    for name, each in kind["tests"].items():
                        own[name] = own.get(name, 0) + int(each["by shuffles"] < LEVEL)
    return found


def assumptions(right, z, shuffles=SHUFFLES):
    """Return the tests of both assumptions, with rewards ``right`` and Z ``z`` [questions, rollouts]."""
    group = np.repeat(np.arange(len(right)), right.shape[1])
    rng = np.random.default_rng(0)
    r, _ = correlations(group, right.ravel(), z.ravel())
    drawn = [_correlated(rng.permuted(right, axis=1), z, group) for _ in range(shuffles)]
    apart = (z - np.median(z, axis=1, keepdims=True)).ravel()
    dealt = [_unequal(rng.permutation(apart), group) for _ in range(shuffles)]
    return {
        "correlation": {"mean": float(r.mean()), "tests": _beside(_correlated(right, z, group), drawn)},
        "variance": {"tests": _beside(_unequal(z.ravel(), group), dealt)},
    }


def formula(groups=GROUPS):
    """Return the measured variance over that of Propositions 4.2 and 4.3, by estimator and p, with standard errors.

    Z is drawn independently of the reward, from an exponential distribution, so that the assumptions are true. "as in
    section 4" is the baseline that the paper's section 4 prints for RLOO: the others' sum over n, in place of n - 1.
    """
    rng, found = np.random.default_rng(0), {}
    for p in CHANCES:
        reward = np.where(rng.random((groups, GROUP)) < p, 1.0, -1.0)
        z = rng.exponential(1.0, (groups, GROUP))
        others = reward.sum(1, keepdims=True) - reward
        advantages = {
            "dr_grpo": reward - reward.mean(1, keepdims=True),
            "rloo": reward - others / (GROUP - 1),
            "rloo, as in section 4": reward - others / GROUP,
        }
        for name, advantage in advantages.items():
            projected = (advantage * z).mean(1)
            predicted = 4 * p * (1 - p) * ((GROUP - 1) / GROUP**2 if name == "dr_grpo" else 1 / (GROUP - 1))
            squares = (projected - projected.mean()) ** 2 / predicted
            error = float(squares.std() / np.sqrt(groups))
            found.setdefault(name, {})[str(p)] = [float(squares.mean()), error, float(projected.mean())]
    return found


def _correlated(right, z, group):
    """Return statistic and p-value of Fisher's and Edgington's combinations."""
    _, p = correlations(group, right.ravel(), z.ravel())
    return {"Fisher": fisher(p), "Edgington": edgington(p)}


def _unequal(z, group):
    """Return statistic and p-value of the tests of equal variance."""
    return {"Levene": levene(group, z), "O'Brien": obrien(group, z)}


def _beside(found, drawn):
    """Return each test's p-value, and its p-value by rank among the shuffles."""
    rows = {}
    for name, (statistic, p) in found.items():
        values = np.array([each[name][0] for each in drawn])
        extreme = values <= statistic if name == "Edgington" else values >= statistic
        rows[name] = {"p": p, "by shuffles": float((1 + extreme.sum()) / (1 + len(drawn)))}
    return rows
