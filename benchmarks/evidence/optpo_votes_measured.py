"""Votes without learning, for the claims on OptPO: recorded ones, the lab's, and votes with known probabilities.

The label of a vote is the answer with the most votes, the first to appear if several have them, which is the paper's
L(M). "right" says whether the label is the right answer, and "disagree" whether it differs from that of all 64 votes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from apportion.lab.world.task import TASKS
from apportion.stopping import BayesianSPRT, Calibrated, Rule, count_votes, decide, encode_answers, top_two
from apportion.stopping.sprt import log_boundaries
from apportion.types import Floats
from benchmarks.evidence.learning import with_half_width
from benchmarks.recorded import Question, Streams, read_vendored

M, N = 64, 32
RULES: Mapping[str, Rule] = {
    **{f"N32_error_{error:g}": BayesianSPRT(32, error, error) for error in (0.01, 0.05, 0.1)},
    "N16_error_0.05": BayesianSPRT(16),
    "calibrated_0.01": Calibrated(0.01),
    "calibrated_0.03": Calibrated(0.03),
}
"""The errors are the alpha = beta of the paper's Table 4."""
ORDERS, PROBLEMS, SEEDS = 10, 128, range(5)


def recorded(name):
    """Return the measures of one of the Game of 24's vendored sets."""
    rows = [row for row in read_vendored() if row["dataset"] == name]
    return measures(Streams.draw(map(Question.of, rows), ORDERS, 0))


def lab(temperature):
    """Return the measures of the medium base, with the problems of five seeds."""
    policy, longest, questions = base_policy("medium"), TASKS["ledger"].max_new_tokens, []
    for seed in SEEDS:
        pool = pool_of(Training(labels="none", problems=PROBLEMS, prompts_per_step=1), seed)
        sampler = LedgerSampler(policy, seed, temperature, longest, reward=None)
        for prompt, group in zip(pool.prompts, sampler(pool.prompts, [M] * PROBLEMS), strict=True):
            answers = tuple(rollout.answer for rollout in group)
            questions.append(Question(answers, {each: each in pool.gold[prompt.id] for each in answers}, None))
    return measures(Streams.draw(questions, 1, 0))


def measures(streams):
    """Return what every rule does on ``streams``, and what the paper assumes of such votes."""

    def over(values):
        return with_half_width(streams.by_question(np.asarray(values, float)))

    full = decide(streams.answers, "fixed", M).answer
    full_right = streams.right(full)
    rules, samples, differ = {}, {}, {}
    for label, rule in RULES.items():
        found = decide(streams.answers, rule, M)
        samples[label] = found.samples
        differ[label] = np.array([mine != theirs for mine, theirs in zip(found.answer, full, strict=True)], float)
        rules[label] = {
            "samples": over(found.samples),
            "disagree": over(differ[label]),
            "right_less_full": over(streams.right(found.answer) - full_right),
        }
    encoded = [encode_answers(stream[:M]) for stream in streams.answers]
    votes = [count_votes(codes, len(answers)) for answers, codes in encoded]
    right = streams.by_question(np.array([_share_right(streams, q) for q in range(len(streams.answers))]))
    share = np.array([each[N - 1].max() / N for each in votes])
    return {
        "rules": rules,
        "calibrated_less_paper": {
            "samples": over(samples["calibrated_0.01"] - samples["N16_error_0.05"]),
            "disagree": over(differ["calibrated_0.01"] - differ["N16_error_0.05"]),
        },
        "harder_correlation": float(np.corrcoef(right, streams.by_question(samples[f"N{N}_error_0.05"]))[0, 1]),
        "majority_share": over(share),
        "right_samples": with_half_width(right),
        "error_by_factor": {
            str(factor): float(np.abs(factor * share - np.repeat(right, streams.orders)).mean())
            for factor in (0.6, 1.0)
        },
        "kappa_at_most_1": over([_log_kappa(each)[N - 1] <= 0 for each in votes]),
        "lower_boundary": _lowest(votes),
    }


def _share_right(streams, stream):
    right = streams.questions[stream // streams.orders].right or {}
    return float(np.mean([right[answer] for answer in streams.answers[stream]]))


def _log_kappa(votes):
    return np.nan_to_num(BayesianSPRT(N).log_bayes_factor(votes)[0], nan=-np.inf)


def _lowest(votes):
    """Return the least log Lambda at kappa > 1 from N on, and the boundary log B it would have to reach."""
    pairs = [BayesianSPRT(N).log_bayes_factor(each) for each in votes]
    least = min(
        (float(ratio[N - 1 :][kappa[N - 1 :] > 0].min()) for kappa, ratio in pairs if (kappa[N - 1 :] > 0).any()),
        default=0.0,
    )
    return {"least": least, "boundary": log_boundaries(0.05, 0.05)[0]}


STREAMS = 4000
MODELS = ((0.5, 2), (0.7, 2), (0.3, 4), (0.5, 4), (0.3, 10), (0.5, 10), (0.2, 20), (0.4, 20))
"""(p_0, m) of the paper's model of votes: the right answer has p_0, the m - 1 others share the rest equally."""


def wald():
    """Return the error of the test itself: p_0 and m known, one exceedance, no minimum, on votes of the paper's model.

    ``wrong`` is the share of wrong labels among votes that reached the boundary within 64 samples, with its 95% half
    width. ``bound`` is (m - 1) / (A + m - 1): the posterior probability of all other answers if each has the odds 1/A.
    """
    found = {}
    for p0, m in MODELS:
        if p0 * m <= 1:  # kappa = 1 for a coin
            continue
        rng = np.random.default_rng([m, int(100 * p0)])
        shares = np.array([p0, *[(1 - p0) / (m - 1)] * (m - 1)])
        votes = count_votes(rng.choice(m, size=(STREAMS, M), p=shares), m)
        first, second = top_two(votes)
        kappa = p0 * (m - 1) / (1 - p0)
        for error in (0.01, 0.05, 0.1):
            upper = log_boundaries(error, error)[1]
            reached = (first - second) >= np.ceil(upper / np.log(kappa) - 1e-9)
            stopped, at = reached.any(axis=-1), reached.argmax(axis=-1)
            wrong = votes[np.arange(STREAMS), at].argmax(axis=-1)[stopped] != 0
            full = votes[:, -1].argmax(axis=-1) != 0
            found[f"p0 {p0:g}, m {m}, alpha {error:g}"] = {
                "wrong": _share(wrong),
                "bound": float((m - 1) / (np.exp(upper) + m - 1)),
                "stopped": float(stopped.mean()),
                "full_wrong": float(full.mean()),
            }
    return found


def _share(values):
    mean = float(np.mean(values)) if values.size else 0.0
    return [mean, float(1.96 * np.sqrt(max(mean * (1 - mean), 1e-9) / max(values.size, 1)))]


def _tail(*leading, answers):
    rest = (1 - sum(leading)) / answers
    return np.array([*leading, *[rest] * answers])


PROBABILITIES: Mapping[str, Floats | float] = {
    "paper's model, p0 .3 of 10": _tail(0.3, answers=9),
    "paper's model, p0 .5 of 10": _tail(0.5, answers=9),
    "one rival, .45 and .35": _tail(0.45, 0.35, answers=4),
    "close race, .3 and .25": _tail(0.3, 0.25, answers=5),
    "long tail, .2 and .12": _tail(0.2, 0.12, answers=50),
    "long tail, .3 and .2": _tail(0.3, 0.2, answers=50),
    "Zipf over 50": (1 / np.arange(1, 51)) / (1 / np.arange(1, 51)).sum(),
    "Dirichlet(.3) over 10": 0.3,
}
"""Probabilities of the answers, the likeliest first; or a concentration, and every vote has its own probabilities."""


def promise():
    """Return the error of the paper's whole rule on votes with known probabilities, beside the full vote's.

    ``wrong`` is the share of votes that stopped before M with another label than the likeliest answer, and
    ``full_wrong`` that of the full vote on the same samples.
    """
    found = {}
    for name, shares in PROBABILITIES.items():
        rng, streams = np.random.default_rng(len(name)), 1500
        if isinstance(shares, float):
            own = -np.sort(-rng.dirichlet([shares] * 10, size=streams), axis=-1)
        else:
            own = np.broadcast_to(shares, (streams, len(shares)))
        codes = (rng.random((streams, M, 1)) > own.cumsum(axis=-1)[:, None]).sum(axis=-1).clip(max=own.shape[-1] - 1)
        answers = codes.astype(str)
        full = np.array(decide(answers, "fixed", M).answer)
        for least in (32, 16):
            decided = decide(answers, BayesianSPRT(least), M)
            early, labels = decided.samples < M, np.array(decided.answer)
            found[f"{name}, N {least}, alpha 0.05"] = {
                "wrong": _share(labels[early] != "0"),
                "full_wrong": _share(full[early] != "0"),
            }
    return found


RIGHT, PASS_16 = 0.265, 0.878
"""mean@16 and pass@16 of Qwen2.5-Math-1.5B with TTRL-GRPO on GPQA, Table 1."""


def four_choices():
    """Return what OptPO saves on four-choice votes with the mean@16 and the pass@16 that the paper reports for GPQA.

    The right answer's probability is from a Beta distribution with mean ``RIGHT``, fitted to ``PASS_16``. The rest is
    shared by the wrong answers: as in a Dirichlet distribution ("spread"), or one wrong answer has all of it ("one").
    """

    def pass_16(log_total):
        a, b = RIGHT * np.exp(log_total), (1 - RIGHT) * np.exp(log_total)
        return float(1 - np.exp(betaln(a, b + 16) - betaln(a, b)))

    total, streams = float(np.exp(brentq(lambda x: pass_16(x) - PASS_16, -3, 6))), 4000
    rng, found = np.random.default_rng(0), {}
    spread = rng.dirichlet(total * np.array([RIGHT, *[(1 - RIGHT) / 3] * 3]), size=streams)
    one = np.column_stack([spread[:, 0], 1 - spread[:, 0], np.zeros((streams, 2))])
    for name, own in {"spread": spread, "one": one}.items():
        codes = (rng.random((streams, M, 1)) > own.cumsum(axis=-1)[:, None]).sum(axis=-1).clip(max=3)
        share = count_votes(codes, 4)[:, N - 1].max(axis=-1) / N
        samples = decide(codes.astype(str), BayesianSPRT(N, choices=4, low_accuracy="continue"), M).samples
        saved = 1.96 * samples.std() / M / streams**0.5
        found[name] = {
            "continue": {"saved": [float(1 - samples.mean() / M), float(saved)]},
            "kappa_at_most_1": _share(0.6 * share * 3 / (1 - 0.6 * share) <= 1),
        }
    return found
