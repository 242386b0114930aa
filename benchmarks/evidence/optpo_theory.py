"""The claims of the paper on OptPO about the error of its test, on simulated votes with known probabilities."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict
from benchmarks.evidence.optpo import several
from benchmarks.evidence.optpo_votes import ALPHA, against, show, span
from benchmarks.evidence.optpo_votes_measured import four_choices, promise, wald

CELLS: Mapping[str, Cell] = {
    "optpo_theory.wald": Cell(wald, 0.2),
    "optpo_theory.promise": Cell(promise, 0.2),
    "optpo_theory.four_choices": Cell(four_choices, 0.2),
}


def judge_wald(cells: Mapping[str, Values]) -> Finding:
    found = {name: each for name, each in cells["optpo_theory.wald"].items() if f"alpha {ALPHA:g}" in name}
    verdicts = {name: against(each["wrong"], ALPHA) for name, each in found.items()}
    broken = [name.split(", alpha")[0] for name, verdict in verdicts.items() if verdict is Verdict.FAILS]
    return Finding(
        f"at alpha = .05 {span(each['wrong'][0] for each in found.values())} of the labels of stopped votes are wrong",
        several(list(verdicts.values())),
        f"More than .05 are wrong in {len(broken)} of {len(found)} models: {'; '.join(broken) or 'none'}. The test "
        "compares the leader with the runner-up only. With m answers each other answer may have the odds 1/A, so alpha "
        "bounds the error for two answers; `bound` is the posterior probability of all others. The 5 exceedances and N "
        "are left out here; the next claim has them.",
        ("p0 and m", "alpha", "wrong", "bound", "stopped", "full vote wrong", "at most alpha"),
        [
            [
                name.split(", alpha ")[0],
                name.split("alpha ")[1],
                show(each["wrong"]),
                f"{each['bound']:.1%}",
                f"{each['stopped']:.0%}",
                f"{each['full_wrong']:.1%}",
                str(against(each["wrong"], float(name.split("alpha ")[1]))),
            ]
            for name, each in cells["optpo_theory.wald"].items()
        ],
    )


def judge_promise(cells: Mapping[str, Values]) -> Finding:
    found = {name: each for name, each in cells["optpo_theory.promise"].items() if name.endswith(f"alpha {ALPHA:g}")}
    verdicts = {name: against(each["wrong"], ALPHA) for name, each in found.items()}
    broken = [name.split(", alpha")[0] for name, verdict in verdicts.items() if verdict is Verdict.FAILS]
    differ = [
        name.split(", alpha")[0] for name, each in found.items() if against(each["disagree"], ALPHA) is Verdict.FAILS
    ]
    return Finding(
        "at alpha = .05 the label of a stopped vote is not the likeliest answer in "
        f"{span(each['wrong'][0] for each in found.values())}",
        several(list(verdicts.values())),
        f"Above .05: {'; '.join(broken) or 'none'}. The control is the full vote on the same samples, which may be as "
        "wrong: then the error is not that of stopping. Stopping changes more than .05 of the labels in: "
        f"{'; '.join(differ) or 'none'}.",
        ("votes", "wrong", "full vote wrong", "differs from the full vote", "stopped"),
        [
            [name, *(show(each[key]) for key in ("wrong", "full_wrong", "disagree")), f"{each['stopped']:.0%}"]
            for name, each in cells["optpo_theory.promise"].items()
        ],
    )


def judge_gpqa(cells: Mapping[str, Values]) -> Finding:
    found = cells["optpo_theory.four_choices"]
    savings = {name: found[name]["continue"]["saved"] for name in ("spread", "one")}
    verdicts = [
        Verdict.HOLDS if each[0] - each[1] > 0.4 else Verdict.FAILS if each[0] + each[1] < 0.4 else Verdict.OPEN
        for each in savings.values()
    ]
    return Finding(
        f"saved: {show(savings['spread'])} if wrong votes spread over three choices, {show(savings['one'])} if one "
        "choice has all wrong votes",
        several(verdicts),
        "Votes are simulated to have the paper's mean@16 (26.5) and pass@16 (87.8) on GPQA. The saving depends on how "
        "wrong votes spread, which the paper does not report. Votes that stop early are then votes for a wrong answer.",
        ("wrong votes", "saved", "saved, literal at kappa <= 1", "majority's share", "kappa <= 1"),
        [
            [
                {"spread": "spread", "one": "on one choice"}[name],
                show(found[name]["continue"]["saved"]),
                show(found[name]["literal"]["saved"]),
                f"{found[name]['majority_share']:.1%}",
                show(found[name]["kappa_at_most_1"]),
            ]
            for name in savings
        ],
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Section 3.2",
        claim="The test keeps its error budget alpha under the paper's own model of votes.",
        figure='(alpha, beta) = (0.05, 0.05), "a 95% confidence level in the consensus decision" (Section 4.1)',
        setting="4,000 simulated votes for each p0 and number of answers m, with p0 and m known, at most 64 samples.",
        cells=("optpo_theory.wald",),
        judge=judge_wald,
    ),
    Claim(
        where="Section 4.1",
        claim="The whole rule has a 95% confidence in the consensus, whatever the probabilities of wrong answers.",
        figure='"a 95% confidence level", "5 times across the rollouts for rigorous guarantees"',
        setting="1,500 simulated votes for each set of probabilities; p0 estimated as in the paper, m counted.",
        cells=("optpo_theory.promise",),
        judge=judge_promise,
    ),
    Claim(
        where="Section 1, Table 1",
        claim="OptPO saves more than 40% on GPQA.",
        figure="43.20% (GRPO), 45.06% (PPO), 43.52% (REINFORCE++) with Qwen2.5-Math-1.5B",
        setting="Simulated four-choice votes with N = 32 and M = 64. No GPQA votes are at hand.",
        cells=("optpo_theory.four_choices",),
        judge=judge_gpqa,
    ),
)
