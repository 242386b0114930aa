"""The claims of the paper on OptPO about learning: what early stopping saves, and what it does to accuracy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binomtest

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, headline, interval, sign
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.optpo_learning_measured import TRAINING, TiesKept, trained

PAPER: Mapping[str, Any] = {"temperature": 0.6}
"""The paper's sampling, with ``TOP_P``."""
TOP_P = 0.95
MARGIN = 0.03
"""A loss of mean@16 below this counts as comparable. The paper's own pairs differ by -2.5 to +5.1 points."""
VOTES = (64, 32, 16, 8, 4)
FOUR = SEEDS[:4]
"""The seeds of runs that are many."""
PROMPTS = TRAINING["steps"] * TRAINING["prompts_per_step"]


def ttrl(votes: int, retained: int = 32) -> Mapping[str, Any]:
    """Return TTRL with so many votes, of which it trains on the first ``retained``, or on all if they are fewer."""
    return {"name": "ttrl", "max_samples": votes, "min_samples": min(votes, retained)}


def optpo(retained: int = 32, **settings: Any) -> Mapping[str, Any]:
    """Return OptPO with N = ``retained`` and M = 64."""
    return {"name": "optpo", "min_samples": retained, **settings}


UPDATES: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"estimator": "gae", "learning_rate": 6e-4},
    "reinforce_plus_plus": {"estimator": "reinforce_plus_plus", "learning_rate": 3.5e-4},
    "sft": {"estimator": "sft", "kl": 0.0, "learning_rate": 6e-4},
}
"""The updates beside GRPO, at the rates that benchmarks/results/label_free.md chose for TTRL."""
MATCHED: Mapping[str, Mapping[str, Any]] = {"ttrl_64": ttrl(64), "ttrl_32": ttrl(32), "optpo": optpo()}
ARMS: Mapping[str, partial[Any]] = {
    **{f"ttrl_{votes}": partial(trained, ttrl(votes)) for votes in VOTES},
    "optpo": partial(trained, optpo()),
    "optpo_ties": partial(trained, TiesKept, {}, 1.0, FOUR),
    **{f"{name}_cold": partial(trained, rule, PAPER, TOP_P, FOUR) for name, rule in MATCHED.items()},
    **{
        f"{name}_{update}": partial(trained, rule, changes)
        for update, changes in UPDATES.items()
        for name, rule in MATCHED.items()
    },
}
CELLS: Mapping[str, Cell] = {
    **{
        f"optpo.learn_{name}": Cell(measure, 1.5, FOUR if FOUR in measure.args else SEEDS)
        for name, measure in ARMS.items()
    },
}
LAB = (
    "Medium base of the lab, 128 prompts without answers, 16 a step, 24 steps of GRPO, M = 64, N = 32, temperature 1, "
    "five paired seeds. The paper trains language models of 1 to 7 billion parameters."
)


def saved(mine: Values, base: Values, what: str = "rollouts") -> SeedInterval:
    """Return the share of ``base``'s rollouts or tokens that ``mine`` does without, paired by seed."""
    return SeedInterval.of((1 - np.divide(mine[what], base[what])).tolist())


def comparable(found: SeedInterval, margin: float = MARGIN) -> Verdict:
    """Judge "no worse": it holds if the interval excludes a loss of ``margin``, and fails if all of it is beyond."""
    half = found.half_width or float("inf")
    if found.mean - half > -margin:
        return Verdict.HOLDS
    return Verdict.FAILS if found.mean + half < -margin else Verdict.OPEN


def several(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim about several settings from those on each.

    It holds under conditions if it holds in some of them. It fails if it fails in some of them and holds in none.
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if Verdict.HOLDS in verdicts:
        return Verdict.CONDITIONS
    return Verdict.FAILS if Verdict.FAILS in verdicts else Verdict.OPEN


def parsed(text: str) -> SeedInterval:
    """Return an interval written as in a table: "49.5% ± 1.2%" or "+0.025 ± 0.042".

    >>> parsed("49.5% ± 1.2%")
    SeedInterval(mean=0.495, half_width=0.012)
    """
    mean, half = (float(each) for each in re.findall(r"[-+]?\d+\.\d+", text))
    scale = 100 if "%" in text else 1
    return SeedInterval(round(mean / scale, 6), round(half / scale, 6))


def arm(cells: Mapping[str, Values], name: str) -> Values:
    """Return the values of an arm."""
    return cells[f"optpo.learn_{name}"]


def row(name: str, mine: Values, base: Values | None = None) -> list[object]:
    """Return a row of ``COLUMNS``: what an arm spends and reaches, beside the arm that it is compared with."""
    return [
        name,
        f"{np.mean(mine['rollouts']) / PROMPTS:.1f}",
        interval(mine["mean_16"]),
        "" if base is None else difference(mine["mean_16"], base["mean_16"]).signed,
        *(f"{np.mean(mine[key]):.3f}" for key in ("pass_16", "maj_16", "labels_right", "unlabelled")),
    ]


COLUMNS = (
    "rule",
    "rollouts a prompt",
    "mean@16",
    "less the first row's",
    "pass@16",
    "maj@16",
    "labels right",
    "no label",
)


def judge_saving(cells: Mapping[str, Values]) -> Finding:
    full, mine = arm(cells, "ttrl_64"), arm(cells, "optpo")
    rollouts, tokens = saved(mine, full), saved(mine, full, "tokens")
    gained = difference(mine["mean_16"], full["mean_16"])
    covered = difference(mine["pass_16"], full["pass_16"])
    verdict = comparable(gained) if sign(rollouts) > 0 else Verdict.FAILS
    return Finding(
        f"{tokens.percent} of the tokens and {rollouts.percent} of the rollouts saved; mean@16 {gained.signed}, "
        f"pass@16 {covered.signed}",
        verdict,
        f"Comparable means that the interval excludes a loss of {MARGIN:g} of mean@16. "
        + ("A loss of mean@16 is beyond noise, but its size is not clear. " if sign(gained) < 0 else "")
        + "TTRL takes 64 votes and trains on the first 32, as OptPO does.",
        COLUMNS,
        [row("TTRL, 64 votes", full), row("OptPO", mine, full)],
    )


def needed(mine: Values, fewer: Values) -> Verdict:
    """Judge that stopping early, ``mine``, is more accurate than ``fewer`` votes.

    It fails if the fewer votes take fewer rollouts, and the interval excludes that they are worse by ``MARGIN``.
    """
    if sign(difference(mine["mean_16"], fewer["mean_16"])) > 0:
        return Verdict.HOLDS
    as_good = comparable(difference(fewer["mean_16"], mine["mean_16"])) is Verdict.HOLDS
    return Verdict.FAILS if as_good and sign(saved(fewer, mine)) > 0 else Verdict.OPEN


def judge_matched(cells: Mapping[str, Values]) -> Finding:
    found = {
        update: [arm(cells, f"{name}{'' if update == 'grpo' else f'_{update}'}") for name in MATCHED]
        for update in ("grpo", *UPDATES)
    }
    verdicts = {update: needed(mine, half) for update, (_, half, mine) in found.items()}
    return Finding(
        "mean@16, OptPO less TTRL with 32 votes: "
        + ", ".join(
            f"{update} {difference(mine['mean_16'], half['mean_16']).signed}"
            for update, (_, half, mine) in found.items()
        ),
        several(list(verdicts.values())),
        "It holds for an update if OptPO's interval is above 0. It does not hold if 32 votes take fewer rollouts and "
        f"the interval excludes that they are {MARGIN:g} worse. All arms train on 32 rollouts of a prompt.",
        ("update", "OptPO less 64 votes", "rollouts saved", "OptPO less 32 votes", "saved by 32 votes", "verdict"),
        [
            [
                update,
                difference(mine["mean_16"], full["mean_16"]).signed,
                saved(mine, full).percent,
                difference(mine["mean_16"], half["mean_16"]).signed,
                saved(half, mine).percent,
                str(verdicts[update]),
            ]
            for update, (full, half, mine) in found.items()
        ],
    )


def judge_fewer_votes(cells: Mapping[str, Values]) -> Finding:
    arms = {votes: arm(cells, f"ttrl_{votes}") for votes in VOTES}
    mine, full = arm(cells, "optpo"), arms[64]
    half = arms[32]
    own, lost = difference(mine["mean_16"], half["mean_16"]), difference(half["mean_16"], full["mean_16"])
    earlier = parsed(headline("label_free_votes", "ttrl_16", "- ttrl"))
    rows = []
    for votes, each in arms.items():
        paired = votes != 64 and len(each["mean_16"]) == len(full["mean_16"])
        rows.append(row(f"TTRL, {votes} votes", each, full if paired else None))
    return Finding(
        f"OptPO less TTRL with 32 votes: mean@16 {own.signed}, at {saved(half, mine).percent} fewer rollouts for TTRL; "
        f"32 votes less 64: {lost.signed}",
        needed(mine, half),
        "Both train on 32 rollouts. The claim does not hold if TTRL with 32 votes takes fewer rollouts than OptPO and "
        f"the interval excludes that it is {MARGIN:g} worse. With 16 votes or fewer TTRL also trains on fewer "
        f"rollouts. In an earlier run that trained on 16 rollouts, 16 votes less 64 gave {earlier.signed}.",
        COLUMNS,
        [*rows, row("OptPO", mine, full)],
    )


def judge_outperforms(cells: Mapping[str, Values]) -> Finding:
    mine = difference(arm(cells, "optpo")["mean_16"], arm(cells, "ttrl_64")["mean_16"])
    others = {
        name: parsed(headline("label_free", f"{name} | optpo", "- TTRL")) for name in ("grpo", "ppo", "reinforce++")
    }
    by_sign = {1: Verdict.HOLDS, -1: Verdict.FAILS, 0: Verdict.OPEN}
    verdict = several([by_sign[sign(each)] for each in (mine, *others.values())])
    said = ", ".join(f"{name} {each.signed}" for name, each in others.items())
    return Finding(
        f"mean@16 less TTRL's: N = 32 {mine.signed}; N = 16: {said}",
        verdict,
        "It fails if some interval lies below 0 and none above. The half widths say how small a gain could be seen.",
    )


TABLE_1 = """\
15.6 14.6 43.3 46.7 17.25 | 47.7 48.5 83.1 81.9 26.93 | 72.3 72.3 90.6 90.8 32.57 | 26.5 26.8 87.8 87.8 43.20
18.5 16.0 46.7 46.7 15.20 | 48.1 48.1 83.1 83.1 26.80 | 71.9 72.3 91.2 91.0 35.01 | 25.9 26.6 87.8 89.8 45.06
11.9 10.4 43.3 46.7 14.35 | 39.3 38.3 81.9 81.9 27.42 | 55.9 56.2 90.2 89.8 25.53 | 26.3 26.5 93.9 90.9 43.52
3.5 1.7 23.3 20.0 47.62 | 14.9 15.2 51.8 55.4 78.36 | 30.3 35.4 66.0 64.4 14.77 | 26.4 25.2 82.2 81.2 44.74
3.8 3.8 30.0 30.0 13.70 | 13.9 17.1 55.4 54.2 41.76 | 31.2 34.1 64.6 64.4 44.49 | 25.7 26.7 83.2 81.7 46.19
1.5 1.7 16.7 23.3 30.02 | 11.4 11.0 54.2 51.8 18.96 | 33.4 36.1 65.4 66.6 29.40 | 27.1 26.7 85.8 85.8 41.96
23.5 23.5 40.0 43.3 38.56 | 52.1 56.8 78.3 77.1 49.06 | 79.7 79.5 91.0 91.6 45.02 | 35.1 35.7 85.3 84.8 40.31
24.4 24.0 46.7 43.3 42.85 | 54.3 53.2 79.5 79.5 41.66 | 80.3 78.1 91.0 91.0 48.96 | 37.9 36.8 83.8 88.8 39.83
20.8 20.6 40.0 40.0 41.45 | 52.9 56.0 80.7 79.5 43.50 | 78.9 79.4 90.8 91.0 44.52 | 33.0 33.0 85.3 84.3 45.47
"""
"""Figures of the paper's Table 1. Rows: three backbones, each with GRPO, PPO and REINFORCE++. Columns: AIME 2024, AMC,
MATH-500 and GPQA, each with mean@16 of TTRL and OptPO, pass@16 of both, and the saving in percent."""


def paper_pairs() -> np.ndarray:
    """Return ``TABLE_1`` as one row of five figures for each of its 36 pairs.

    >>> paper_pairs().shape
    (36, 5)
    """
    return np.array([pair.split() for line in TABLE_1.splitlines() for pair in line.split("|")], float)


def judge_paper_table(_: Mapping[str, Values]) -> Finding:
    pairs, said, verdicts = paper_pairs(), [], []
    for name, first in (("mean@16", 0), ("pass@16", 2)):
        change = pairs[:, first + 1] - pairs[:, first]
        up, down = int((change > 1e-9).sum()), int((change < -1e-9).sum())
        p = binomtest(up, up + down).pvalue
        said.append(f"{name}: higher in {up}, lower in {down}, equal in {36 - up - down} of 36 (sign test p = {p:.2f})")
        verdicts.append(Verdict.HOLDS if down <= 0.1 * len(pairs) else Verdict.FAILS)
    return Finding(
        "; ".join(said),
        several(verdicts),
        "Consistently means that OptPO is lower in at most a tenth of the pairs. These are the paper's own figures, "
        "counted by us. Each is one run; the paper gives no intervals and no seeds. "
        f"The mean of its 36 savings is {pairs[:, 4].mean():.1f}%, and "
        f"{int(((pairs[:, 4] >= 30) & (pairs[:, 4] <= 50)).sum())} of them lie between 30% and 50%.",
    )


def judge_most(_: Mapping[str, Values]) -> Finding:
    savings = paper_pairs()[:, 4]
    above = sorted(float(each) for each in savings if each > 50)
    return Finding(
        f"With N = 32 of M = 64 stopping saves at most 50% of the rollouts; {len(above)} of 36 savings is above: "
        f"{', '.join(f'{each:g}%' for each in above)}",
        Verdict.HOLDS if not above else Verdict.CONDITIONS if len(above) < len(savings) / 2 else Verdict.FAILS,
        "Arithmetic on the paper's figures. A saving of tokens above 50% needs shorter completions as well. The paper "
        "counts the tokens of two training runs whose policies drift apart, so its savings in tokens mix both.",
    )


def judge_retained(_: Mapping[str, Values]) -> Finding:
    gained = parsed(headline("label_free_settings", "N_32", "- paper"))
    more = parsed(headline("label_free_settings", "N_32", "rollouts saved"))
    few, many = (-each for each in (gained.mean, more.mean))
    saving = SeedInterval(1 - 1 / (1 + many), more.half_width)
    accuracy = SeedInterval(few, gained.half_width)
    return Finding(
        f"N = 16 takes {saving.percent} fewer rollouts than N = 32; mean@16 {accuracy.signed}",
        comparable(accuracy) if sign(saving) > 0 else Verdict.FAILS,
        "N is both the fewest votes and the number of rollouts trained on, so the two effects are not separated. "
        "From benchmarks/results/label_free_settings.md.",
    )


def judge_time(cells: Mapping[str, Values]) -> Finding:
    mine, full, half = (arm(cells, name) for name in ("optpo", "ttrl_64", "ttrl_32"))

    def at_equal_tokens(other: Values) -> SeedInterval:
        ahead = []
        for seed in range(len(mine["mean_16"])):
            spent = min(mine["tokens"][seed], other["tokens"][seed])
            values = [
                np.interp(spent, each["tokens_by_seed"][seed], each["mean_16_by_seed"][seed]) for each in (mine, other)
            ]
            ahead.append(float(values[0] - values[1]))
        return SeedInterval.of(ahead)

    against, control = at_equal_tokens(full), at_equal_tokens(half)
    seconds = SeedInterval.of(np.divide(mine["rollout_seconds"], full["rollout_seconds"]).tolist())
    faster = sign(against) > 0
    verdict = Verdict.FAILS if sign(against) < 0 else Verdict.OPEN
    if faster:
        verdict = Verdict.HOLDS if sign(control) > 0 else Verdict.CONDITIONS
    server = headline("serving", "`optpo` | 8", "of the full vote's")
    return Finding(
        f"mean@16 at equal tokens less TTRL's: {against.signed} (64 votes), {control.signed} (32 votes)",
        verdict,
        "The claim holds if OptPO is ahead of both at equal tokens, and under conditions if it is ahead of 64 votes "
        f"only. Its rollouts took {seconds} times the CPU seconds of 64 votes drawn at once in the lab, because "
        "votes in waves make smaller batches. On a served model an OptPO vote took "
        f"{server} of the full vote's CPU seconds (benchmarks/results/serving.md).",
        ("rule", "tokens, thousands", "CPU s for rollouts", "mean@16"),
        [
            [
                name,
                f"{np.mean(each['tokens']) / 1000:.0f}",
                f"{np.mean(each['rollout_seconds']):.1f}",
                interval(each["mean_16"]),
            ]
            for name, each in (("TTRL, 64 votes", full), ("TTRL, 32 votes", half), ("OptPO", mine))
        ],
    )


def judge_updates(_: Mapping[str, Values]) -> Finding:
    rows, verdicts = [], []
    for name in ("grpo", "ppo", "reinforce++"):
        saving, gained = (headline("label_free", f"{name} | optpo", key) for key in ("rollouts saved", "- TTRL"))
        verdicts.append(comparable(parsed(gained)) if sign(parsed(saving)) > 0 else Verdict.FAILS)
        rows.append([name, saving, gained, str(verdicts[-1])])
    return Finding(
        "; ".join(f"{name}: {saving} saved, mean@16 {gained}" for name, saving, gained, _ in rows),
        several(verdicts),
        f"For each update alone: comparable if the interval excludes a loss of {MARGIN:g}. From "
        "benchmarks/results/label_free.md; exceedances are counted from N on.",
        ("update", "rollouts saved", "mean@16 less TTRL's", "verdict"),
        rows,
    )


def judge_sft(_: Mapping[str, Values]) -> Finding:
    saving, gained = (headline("label_free", "sft | optpo", key) for key in ("rollouts saved", "- TTRL"))
    return Finding(
        f"{saving} of the rollouts saved, mean@16 {gained}",
        comparable(parsed(gained)) if sign(parsed(saving)) > 0 else Verdict.FAILS,
        f"Comparable means that the interval excludes a loss of {MARGIN:g}. From benchmarks/results/label_free.md.",
    )


def judge_rl_over_sft(_: Mapping[str, Values]) -> Finding:
    sft = parsed(headline("label_free", "sft | optpo", "mean@16"))
    found = {}
    for name in ("grpo", "ppo", "reinforce++"):
        mine = parsed(headline("label_free", f"{name} | optpo", "mean@16"))
        halves = (mine.half_width or 0.0, sft.half_width or 0.0)
        found[name] = SeedInterval(mine.mean - sft.mean, float(np.hypot(*halves)))
    signs = [sign(each) for each in found.values()]
    verdict = Verdict.HOLDS if set(signs) == {1} else Verdict.CONDITIONS if 1 in signs else Verdict.OPEN
    return Finding(
        "mean@16 of OptPO less that of its SFT: " + ", ".join(f"{name} {each.signed}" for name, each in found.items()),
        Verdict.FAILS if set(signs) == {-1} else verdict,
        "Intervals are combined as if the seeds were independent. Learning rates were chosen for each update. From "
        "benchmarks/results/label_free.md.",
    )


def judge_cold(cells: Mapping[str, Values]) -> Finding:
    full, half, mine = (cells[f"optpo.learn_{name}_cold"] for name in ("ttrl_64", "ttrl_32", "optpo"))
    rollouts, gained = saved(mine, full), difference(mine["mean_16"], full["mean_16"])
    control = difference(mine["mean_16"], half["mean_16"])
    return Finding(
        f"{rollouts.percent} of the rollouts saved, mean@16 {gained.signed}; less TTRL with 32 votes {control.signed}",
        comparable(gained) if sign(rollouts) > 0 else Verdict.FAILS,
        "Colder votes agree more, so more of them stop at N. mean@16 is sampled at temperature .6 without top-p. "
        f"Comparable means that the interval excludes a loss of {MARGIN:g}.",
        COLUMNS,
        [row("TTRL, 64 votes", full), row("TTRL, 32 votes", half, full), row("OptPO", mine, full)],
    )


def judge_ties(cells: Mapping[str, Values]) -> Finding:
    kept = cells["optpo.learn_optpo_ties"]
    mine = {key: values[: len(FOUR)] for key, values in cells["optpo.learn_optpo"].items()}
    gained = difference(kept["mean_16"], mine["mean_16"])
    ties = cells["optpo_votes.lab_plain"]["ties"]["64"]
    verdict = {1: Verdict.HOLDS, -1: Verdict.FAILS, 0: Verdict.OPEN}[sign(gained)]
    return Finding(
        f"{ties[0]:.1%} of the base's votes of 64 tie, and L(M) is right in {ties[1]:.1%} of those; mean@16 with L(M) "
        f"as label less without: {gained.signed}",
        verdict,
        "The package gives tied votes no label and does not train on them. The paper takes the leader L(M), which is "
        "ambiguous at a tie; here it is the answer that appeared first.",
        COLUMNS,
        [row("ties dropped (package)", mine), row("ties decided for L(M)", kept, mine)],
    )


def judge_reallocated(_: Mapping[str, Values]) -> Finding:
    text = headline("shared_votes", "all, mixed | optpo, N = 16", "gain in 8 rounds")
    low, high = (float(each) for each in re.findall(r"[-+]?\d+\.\d+", text)[1:])
    shared = parsed(headline("label_free_votes", "shared_24", "- ttrl"))
    verdict = Verdict.HOLDS if low > 0 else Verdict.FAILS if high < 0 else Verdict.OPEN
    return Finding(
        f"agreement with the full vote at OptPO's samples, shared less OptPO: {text} points; learning with 24 shared "
        f"votes a prompt less TTRL with 64: mean@16 {shared.signed}",
        verdict,
        "OptPO in the paper does not reallocate. The package's allocator `SharedVotes` does. From "
        "benchmarks/results/shared_votes.md and label_free_votes.md.",
    )


LEARNT = ("optpo.learn_ttrl_64", "optpo.learn_optpo")
HALF = ("optpo.learn_ttrl_32",)
CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Section 4.2, Table 1",
        claim="OptPO saves tokens at comparable or higher mean@16 and pass@16 than TTRL.",
        figure="30% ~ 50% fewer tokens on average; Qwen2.5-Math-1.5B with GRPO on MATH-500: 32.57%, mean@16 72.3 and "
        "72.3, pass@16 90.6 and 90.8",
        setting=LAB,
        cells=LEARNT,
        judge=judge_saving,
    ),
    Claim(
        where="Section 1 and 2",
        claim="Saving rollouts needs adaptive stopping, because a fixed number of votes must be large.",
        figure='"they require many redundant rollouts to stabilize consensus estimates"; TTRL with fewer votes is not '
        "in the paper",
        setting=LAB + " The control is TTRL with 32, 16, 8 and 4 votes.",
        cells=(*LEARNT, *HALF, *(f"optpo.learn_ttrl_{votes}" for votes in VOTES[2:])),
        judge=judge_fewer_votes,
    ),
    Claim(
        where="Section 4.2",
        claim="OptPO is more accurate than TTRL.",
        figure='"consistently outperforms TTRL with higher accuracy"',
        setting=LAB + " The runs with N = 16 are those of benchmarks/results/label_free.md.",
        cells=LEARNT,
        judge=judge_outperforms,
    ),
    Claim(
        where="Section 4.2, Table 1",
        claim="The paper's table shows that OptPO consistently outperforms TTRL.",
        figure="36 pairs of runs: 3 backbones, 3 updates, 4 benchmarks",
        setting="Only the paper's figures are used.",
        judge=judge_paper_table,
    ),
    Claim(
        where="Section 4.2, Table 1",
        claim="The savings in tokens come from stopping votes early.",
        figure="78.36% on AMC with Llama-3.2-1B-Instruct and GRPO, N = 32, M = 64",
        setting="Only the paper's figures are used.",
        judge=judge_most,
    ),
    Claim(
        where="Section 4.4, Table 3",
        claim="N = 16 saves more than N = 32 at maintained accuracy.",
        figure="43.9% against 30.0% of the tokens; MATH-500: 50.66% and 32.57%, mean@16 70.7 and 72.3",
        setting="Medium base of the lab, 256 prompts, 48 steps of GRPO, five seeds. Exceedances are counted from N on.",
        judge=judge_retained,
    ),
    Claim(
        where="Section 4.2, Figure 1",
        claim="OptPO reaches an accuracy sooner in rollout time.",
        figure='"faster convergence and improvement of OptPO on the MATH-500 benchmark" (curves, no figures)',
        setting=LAB + " Tokens and CPU seconds stand for time.",
        cells=(*LEARNT, *HALF),
        judge=judge_time,
    ),
    Claim(
        where="Section 4.2",
        claim="The saving at equal accuracy holds for GRPO, PPO and REINFORCE++.",
        figure="MATH-500 with Qwen2.5-Math-1.5B: 32.57%, 35.01% and 25.53% of the tokens",
        setting="Medium base of the lab, 256 prompts, 48 steps, N = 16, M = 64, five seeds.",
        judge=judge_updates,
    ),
    Claim(
        where="Section 4.2, a control of ours",
        claim="Stopping early is more accurate than TTRL with 32 votes, under every update.",
        figure="TTRL with fewer votes is not in the paper",
        setting=LAB
        + " PPO, REINFORCE++ and SFT take the place of GRPO, at the rates that benchmarks/results/label_free.md "
        "chose for TTRL.",
        cells=(
            *LEARNT,
            *HALF,
            *(f"optpo.learn_{name}_{update}" for update in UPDATES for name in MATCHED),
        ),
        judge=judge_matched,
    ),
    Claim(
        where="Section 4.3, Table 2",
        claim="OptPO with SFT saves tokens at similar or higher accuracy.",
        figure="15% ~ 60%; MATH-500 with Qwen2.5-Math-1.5B: 25.29%, mean@16 59.7 and 59.0",
        setting="Medium base of the lab, 256 prompts, 48 steps, N = 16, M = 64, five seeds. The SFT target is the mean "
        "over retained rollouts with the pseudo-label.",
        judge=judge_sft,
    ),
    Claim(
        where="Section 4.3",
        claim="RL updates are more accurate than SFT.",
        figure="MATH-500 with Qwen2.5-Math-1.5B: mean@16 72.3 (GRPO) and 59.0 (SFT)",
        setting="Medium base of the lab, 256 prompts, 48 steps, N = 16, M = 64, five seeds.",
        judge=judge_rl_over_sft,
    ),
    Claim(
        where="Section 4.1",
        claim="The saving holds with the paper's sampling: temperature 0.6 and top-p 0.95.",
        figure="temperature 0.6, p = 0.95 in all runs",
        setting=LAB.replace("temperature 1", "temperature .6, top-p .95").replace("five", "four")
        + " Gradients are those of the whole "
        "distribution at temperature .6.",
        cells=tuple(f"optpo.learn_{name}_cold" for name in ("ttrl_64", "ttrl_32", "optpo")),
        judge=judge_cold,
    ),
    Claim(
        where="Section 3.2",
        claim="If no boundary is crossed by M, the label is the leader L(M).",
        figure="a* = L(M)",
        setting=LAB.replace("five", "four")
        + " Better means a higher mean@16 with this rule than without labels for ties.",
        cells=("optpo.learn_optpo", "optpo.learn_optpo_ties", "optpo_votes.lab_plain"),
        judge=judge_ties,
    ),
    Claim(
        where="Section 3.2",
        claim="Saved rollouts can be given to harder prompts under a fixed budget.",
        figure="no figure",
        setting="Recorded votes of four data sets, and learning in the lab with five seeds.",
        judge=judge_reallocated,
    ),
)
