"""What is made of AR3PO's cells: one function a claim, which returns the finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.ar3po_counts import STAGES
from benchmarks.evidence.ar3po_lab import EQUAL_STEPS
from benchmarks.evidence.claim import Finding, Values, Verdict, difference, headline, interval, sign

MARGIN = 0.02
"""A success that is lower by less than this counts as comparable."""
PAPER_ROLLOUTS, PAPER_LOW, PAPER_HIGH, PAPER_SAVING = 5.7, 6.95, 4.0, 4.2
CHECKPOINTS = "recompute or replay, with log-probabilities | shared"


def rollouts(found: Mapping[str, Values]) -> Finding:
    run, lab = found["ar3po.recorded"], found["ar3po.reuse"]
    mean, low, high = run["rollouts"]["2x4"]
    close = abs(mean - PAPER_ROLLOUTS) <= 0.1 * PAPER_ROLLOUTS
    fewer = high < 8 and np.max(lab["rollouts_per_prompt"]) < 8
    parts = run["rollouts_by_part"]
    return Finding(
        f"{mean:.2f} [{low:.2f}, {high:.2f}] in the recorded run, {interval(lab['rollouts_per_prompt'], '.2f')} in "
        "the lab",
        Verdict.HOLDS if close and fewer else Verdict.CONDITIONS if fewer else Verdict.FAILS,
        "The verdict is positive if both are below 8 and the recorded run is within a tenth of 5.7. The number falls "
        f"as the policy learns: from {parts[0]:.2f} at the first visit to {parts[-1]:.2f} from the 17th on in the "
        f"recorded run, and from {lab['course']['rollouts'][0]:.2f} to {lab['course']['rollouts'][-1]:.2f} in the "
        "lab. Two stages of 4 can never take fewer than 4.",
    )


def bands(found: Mapping[str, Values]) -> Finding:
    run, lab, own = found["ar3po.recorded"], found["ar3po.reuse"], found["ar3po.arithmetic"]
    low, high = run["rollouts_by_band"][0], run["rollouts_by_band"][-1]
    falls = bool((np.diff(run["rollouts_by_band"]) < 0).all() and (np.diff(lab["bands"]) < 0).all())
    near = abs(low - PAPER_LOW) <= 0.5 and abs(high - PAPER_HIGH) <= 0.1
    edges = ["0 to .2", ".2 to .4", ".4 to .6", ".6 to .8", ".8 to 1"]
    rows = [
        [edge, f"{here:.2f}", f"{share:.0%}", f"{there:.2f}"]
        for edge, here, share, there in zip(
            edges, run["rollouts_by_band"], run["groups_by_band"], lab["bands"], strict=True
        )
    ]
    return Finding(
        f"{low:.2f} and {high:.2f} in the recorded run, {lab['bands'][0]:.2f} and {lab['bands'][-1]:.2f} in the lab",
        Verdict.HOLDS if falls and near else Verdict.CONDITIONS if falls else Verdict.FAILS,
        "The verdict is positive if the number falls from band to band in both, and the recorded run is within .5 of "
        "6.95 and .1 of 4. The rate of a recorded group is the mean of the other visits around it. The paper's "
        f"figures fit each other: the Beta distribution ({own['alpha']:.2f}, {own['beta']:.2f}) of success rates, "
        f"which has 5.7 rollouts a prompt and .30 without a correct response, has {own['rollouts_low']:.2f} rollouts "
        f"in the lowest band. The code's counts agree with 4 + 4 (1 - p)^4 to {own['code_minus_formula']:.0e}.",
        ["success rate", "recorded run", "share of its groups", "lab"],
        rows,
    )


def comparable(found: Mapping[str, Values]) -> Finding:
    mine, grpo, five = found["ar3po.reuse"], found["controls.uniform_8_grpo"], found["ar3po.uniform_5"]
    gap, matched = difference(mine["equal_steps"], grpo["end"]), difference(mine["equal_steps"], five["equal_steps"])
    share = float(np.mean(mine["rollouts_per_prompt"])) / 8
    return Finding(
        f"{gap.signed} of success after {EQUAL_STEPS} steps, with {share:.0%} of the rollouts",
        _not_worse(gap),
        f"At equal steps. The claim holds if the whole interval is above -{MARGIN}, and fails if it is below. GRPO "
        f"with 8 reaches {interval(grpo['end'])}. Uniform 5, which takes {5 / 8:.0%} of the rollouts for every prompt "
        f"alike, reaches {interval(five['equal_steps'])}; AR3PO less uniform 5 is {matched.signed} at equal steps.",
    )


def _not_worse(gap: SeedInterval) -> Verdict:
    """Return whether a difference lies above or below the margin, or cannot be told."""
    if gap.half_width is None:
        return Verdict.OPEN
    above, below = gap.mean - gap.half_width > -MARGIN, gap.mean + gap.half_width < -MARGIN
    return Verdict.HOLDS if above else Verdict.FAILS if below else Verdict.OPEN


def outperforms(found: Mapping[str, Values]) -> Finding:
    mine = found["ar3po.reuse"]
    controls = {
        "GRPO 8": "controls.uniform_8_grpo",
        "uniform 5, GRPO": "ar3po.uniform_5",
        "uniform 8, RLOO": "controls.uniform_8_rloo",
        "uniform 4, RLOO": "controls.uniform_4_rloo",
    }
    areas = {name: difference(mine["area"], found[cell]["area"]) for name, cell in controls.items()}
    rows = [
        [
            "AR3PO",
            f"{mine['rate']:g}",
            interval(mine["area"]),
            interval(mine["end"]),
            _text(mine["reached"]["0.8"]),
            "-",
        ]
    ]
    for name, cell in controls.items():
        own = found[cell]
        to_80 = own["reached"]["0.8"] if "reached" in own else own["to_80"]
        rows.append(
            [name, f"{own['rate']:g}", interval(own["area"]), interval(own["end"]), _text(to_80), areas[name].signed]
        )
    grpo, five = areas["GRPO 8"], areas["uniform 5, GRPO"]
    return Finding(
        f"area {grpo.signed} against GRPO 8, {five.signed} against uniform 5",
        _beyond(sign(grpo), sign(five)),
        "At equal rollouts. The claim holds if AR3PO is ahead of GRPO 8 and of the control with about as many "
        "rollouts a prompt. It holds under the condition that the baseline has 8 a prompt if AR3PO is ahead of GRPO 8 "
        "only. Smaller groups pay for more updates, and uniform 5 has that without stages. The difference to the "
        "tuned uniform under RLOO was measured before, with AR3PO under RLOO: "
        f"{headline('methods', 'ar3po', 'area - baseline')}.",
        ["rule", "rate", "area", "success at the end", "rollouts to .8", "AR3PO's area less its"],
        rows,
    )


def _beyond(against_paper: int, against_control: int) -> Verdict:
    """Return the verdict of being ahead of the paper's baseline and of a matched control, by signs of differences."""
    if against_paper < 0:
        return Verdict.FAILS
    if against_paper == 0:
        return Verdict.OPEN
    return Verdict.HOLDS if against_control > 0 else Verdict.CONDITIONS


def _text(values: Sequence[float | None]) -> str:
    """Return the mean of rollouts, or how many seeds got there if not all did."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} seeds"
    return interval(known, ",.0f")


def dapo(found: Mapping[str, Values]) -> Finding:
    mine, dapo = found["ar3po.reuse"], found["ar3po.dapo"]
    area, end = difference(mine["area"], dapo["area"]), difference(mine["end"], dapo["end"])
    batch = SeedInterval.of(np.divide(dapo["per_group_in_loss"], mine["rollouts_per_prompt"]).tolist())
    rows, savings = [], {}
    for level in mine["reached"]:
        ratio = _ratio(dapo["reached"][level], mine["reached"][level])
        savings[level] = ratio
        rows.append([f"to {level}", _text(mine["reached"][level]), _text(dapo["reached"][level]), _times(ratio)])
    per_group = np.divide(dapo["per_group_in_loss"], mine["per_group_in_loss"]).tolist()
    rows.append(
        [
            "for each prompt of an update",
            interval(mine["per_group_in_loss"], ".2f"),
            interval(dapo["per_group_in_loss"], ".2f"),
            _times(SeedInterval.of(per_group)),
        ]
    )
    rows.append(["area", interval(mine["area"]), interval(dapo["area"]), area.signed])
    rows.append(["success at the end", interval(mine["end"]), interval(dapo["end"]), end.signed])
    saving = savings["0.8"]
    saves = saving is not None and saving.half_width is not None and saving.mean + saving.half_width >= PAPER_SAVING
    ahead = _not_worse(end)
    verdict = (
        Verdict.FAILS
        if ahead is Verdict.FAILS
        else Verdict.OPEN
        if ahead is Verdict.OPEN
        else Verdict.HOLDS
        if saves
        else Verdict.CONDITIONS
    )
    return Finding(
        f"{_times(batch)} fewer for each prompt of an update; {_times(saving)} fewer to a success of .8",
        verdict,
        f"AR3PO's success at equal rollouts must not be lower than DAPO's by {MARGIN}. Then the claim holds if 4.2 is "
        "within reach of the saving to a success of .8, and holds under conditions otherwise. The saving for each "
        "prompt of an update is the paper's kind of figure. It overstates what is saved, because every group of "
        "DAPO's updates has a gradient, and a part of AR3PO's has none. DAPO throws away "
        f"{np.mean(dapo['thrown_away']):.0%} of its rollouts here. Uniform 5 saves as well: its area less DAPO's is "
        f"{difference(found['ar3po.uniform_5']['area'], dapo['area']).signed}.",
        ["rollouts", "AR3PO", "DAPO", "DAPO's over AR3PO's, or AR3PO's less DAPO's"],
        rows,
    )


def _ratio(larger: Sequence[float | None], smaller: Sequence[float | None]) -> SeedInterval | None:
    """Return the interval of the ratio over seeds, or None if a run never got there."""
    if None in larger or None in smaller:
        return None
    return SeedInterval.of([a / b for a, b in zip(larger, smaller, strict=True) if a is not None and b])


def _times(found: SeedInterval | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.2f}x" + ("" if found.half_width is None else f" ± {found.half_width:.2f}")


def without(found: Mapping[str, Values]) -> Finding:
    run, mine, staged = (found[f"ar3po.{name}"] for name in ("recorded", "reuse", "staged"))
    lab = difference(mine["without"], mine["after"])
    before, after = run["without"], run["after"]
    recorded_falls = after[2] < 0.2 < before[1]
    lab_falls = sign(lab) > 0
    columns = [
        "part of the run",
        "8 for every prompt",
        "stages alone",
        "stages, before reuse",
        "after reuse",
        "hits of the store",
    ]
    rows = [
        [
            f"lab, part {part + 1} of 8",
            f"{mine['course']['none_of_8'][part]:.3f}",
            f"{staged['course']['without'][part]:.3f}",
            f"{mine['course']['without'][part]:.3f}",
            f"{mine['course']['after'][part]:.3f}",
            _share(mine["course"]["hits"][part]),
        ]
        for part in range(8)
    ]
    names = ["1", "2", "3 to 4", "5 to 8", "9 to 16", "17 to 44"]
    rows += [
        [f"recorded, visits {name}", f"{one:.3f}", "the same", f"{one:.3f}", f"{two:.3f}", _share(hit)]
        for name, one, two, hit in zip(
            names, run["without_by_part"], run["after_by_part"], run["hits_by_part"], strict=True
        )
    ]
    return Finding(
        f"{before[0]:.3f} to {after[0]:.3f} [{after[1]:.3f}, {after[2]:.3f}] in the recorded run, "
        f"{np.mean(mine['without']):.3f} to {np.mean(mine['after']):.3f} in the lab",
        Verdict.HOLDS
        if recorded_falls and lab_falls
        else Verdict.CONDITIONS
        if recorded_falls or lab_falls
        else Verdict.OPEN,
        "The verdict is positive if reuse brings the recorded run from above .2 to below it, and lowers the lab's "
        "share. Before and after reuse are at the same policy, so the whole difference is due to reuse. The stages "
        "alone lower nothing at equal policy: with up to 8 rollouts a prompt has no correct one with probability (1 - "
        "p)^8 under both. In the first epoch there is nothing to reuse. The column with 8 for every prompt is this "
        "expectation at AR3PO's policy. In other runs on the medium base the shares were "
        f"{headline('ar3po', 'grpo_8', 'no correct')} for GRPO 8, {headline('ar3po', 'staged', 'no correct')} for the "
        f"stages alone, and {headline('ar3po', 'option_ii', 'no correct')} to "
        f"{headline('ar3po', 'option_ii', 'after reuse')} by reuse (benchmarks/results/ar3po.md).",
        columns,
        rows,
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def stages_learn(found: Mapping[str, Values]) -> Finding:
    run, staged, five = (found[f"ar3po.{name}"] for name in ("recorded", "staged", "uniform_5"))
    gap = difference(staged["area"], five["area"])
    mine = {"rollouts": run["rollouts"]["2x4"][0], "hits": run["hits"], "mixed": run["mixed"]["2x4"]}
    even = {key: _even(run, key, mine["rollouts"]) for key in ("hits", "mixed")}
    rows = [[f"uniform {n}", n, f"{own['hits']:.1%}", f"{own['mixed']:.1%}"] for n, own in run["uniform"].items()]
    rows.append(["uniform, interpolated", f"{mine['rollouts']:.2f}", f"{even['hits']:.1%}", f"{even['mixed']:.1%}"])
    rows.append(["AR3PO, stages alone", f"{mine['rollouts']:.2f}", f"{mine['hits']:.1%}", f"{mine['mixed']:.1%}"])
    return Finding(
        f"{mine['mixed']:.1%} of groups with both outcomes against {even['mixed']:.1%} of uniform with equal rollouts; "
        f"area {gap.signed} against uniform 5",
        _efficient(mine["hits"] > even["hits"], mine["mixed"] > even["mixed"], sign(gap)),
        "The claim holds if at equal rollouts the stages find more prompts with a correct response, have more groups "
        "with both outcomes (the others have no gradient), and learn faster than uniform 5 in the lab. It fails if "
        "they have none of the three, or learn more slowly. It holds under conditions otherwise. The first two are "
        f"exact along the recorded run. The half width of the difference in area is {gap.half_width or 0:.3f}. In the "
        f"lab AR3PO's stages take {np.mean(staged['rollouts_per_prompt']):.2f} rollouts a prompt. Groups of 8 for "
        f"every prompt have both outcomes in {run['mixed']['1x8']:.1%}, so with stages each step has less signal.",
        ["rule, recorded run", "rollouts a prompt", "prompts with a correct response", "groups with both outcomes"],
        rows,
    )


def _even(run: Values, key: str, rollouts: float) -> float:
    """Return what uniform counts would have with a fractional number of rollouts, a mixture of two whole numbers."""
    sizes = sorted(map(int, run["uniform"]))
    return float(np.interp(rollouts, sizes, [run["uniform"][str(n)][key] for n in sizes]))


def _efficient(more_hits: bool, more_mixed: bool, learns: int) -> Verdict:
    """Return the verdict of three tests against uniform with equal rollouts, the last by the sign of a difference."""
    if learns < 0 or not (more_hits or more_mixed or learns):
        return Verdict.FAILS
    return Verdict.HOLDS if more_hits and more_mixed and learns > 0 else Verdict.CONDITIONS


def reuse_learns(found: Mapping[str, Values]) -> Finding:
    mine, staged, paired = found["ar3po.reuse"], found["ar3po.staged"], found["ar3po.paired"]
    hard = difference(mine["area"], staged["area"])
    medium = difference(paired["reuse"]["area"], paired["staged"]["area"])
    ends = difference(mine["end"], staged["end"]), difference(paired["reuse"]["end"], paired["staged"]["end"])
    reached = [np.mean(own["without"]) - np.mean(own["after"]) for own in (mine, paired["reuse"])]
    recorded = found["ar3po.recorded"]["without"][0] - found["ar3po.recorded"]["after"][0]
    return Finding(
        f"area {hard.signed} on the hard base, {medium.signed} on the medium base",
        _anywhere([sign(hard), sign(medium)]),
        "AR3PO less AR3PO without reuse, paired by seed, at equal rollouts. The claim holds if reuse raises the area "
        "in both settings, and holds under conditions if in one. It fails if reuse raises it in none and lowers it in "
        f"one. Reuse changes {reached[0]:.1%} and {reached[1]:.1%} of the groups here, so its effect can only be "
        f"small. In the recorded run it would change {recorded:.1%}. The success at the end differs by "
        f"{ends[0].signed} and {ends[1].signed}. Under RLOO on the hard base the areas less that of uniform 4 were "
        f"{headline('methods', 'ar3po', 'area - baseline')} with reuse and "
        f"{headline('methods', 'ar3po_staged', 'area - baseline')} without.",
    )


def _anywhere(signs: Sequence[int]) -> Verdict:
    """Return the verdict of a gain that is looked for in several settings, by the signs of its intervals."""
    if 1 in signs:
        return Verdict.HOLDS if set(signs) == {1} else Verdict.CONDITIONS
    return Verdict.FAILS if -1 in signs else Verdict.OPEN


def staleness(found: Mapping[str, Values]) -> Finding:
    mine, paired = found["ar3po.reuse"], found["ar3po.paired"]
    gap = difference(paired["reuse"]["area"], paired["replay"]["area"])
    ages, far, outside, ratio = (mine["course"][key] for key in ("age_epochs", "far", "outside_clip", "ratio"))
    rows = [
        [
            f"part {part + 1} of 8",
            _form(ages[part], ".2f"),
            _form(ratio[part], ".2f"),
            _share(far[part]),
            _share(outside[part]),
        ]
        for part in range(8)
        if ages[part] is not None
    ]
    return Finding(
        f"area {gap.signed}",
        _anywhere([sign(gap)]),
        "Option II less direct replay, paired by seed. Old responses do have importance ratios far from 1, as the "
        "table of the hard base shows. Reuse picks prompts that fail now and were solved before. So late in training "
        "the mean ratio is far below 1: the policy has become less likely to write these responses. Replay also costs "
        f"bias. At p = .1 the expected RLOO gradient is {headline('bias', 'ar3po, reuse in the loss', 'p = 0.1')} "
        f"times the true one with the response in the loss, {headline('bias', 'ar3po, reuse', 'p = 0.1')} times with "
        f"Option II, and {headline('bias', 'ar3po', 'p = 0.1')} times without reuse.",
        [
            "lab",
            "age in epochs",
            "mean importance ratio of a reused response",
            "outside .5 to 2",
            "tokens outside .8 to 1.2",
        ],
        rows,
    )


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def weights(found: Mapping[str, Values]) -> Finding:
    own = found["ar3po.stages"]
    at, ratio = np.array(own["at"]), np.array(own["2x4"]["ratio"])
    picked = [0.02, 0.1, 0.3, 0.5, 0.9]
    shown = [f"{ratio[np.isclose(at, p)][0]:.2f} at {p:g}" for p in picked]
    falls = bool((np.diff(ratio) <= 0).all() and ratio[0] > 1)
    return Finding(
        "gradient over the true one: " + ", ".join(shown),
        Verdict.HOLDS if falls else Verdict.FAILS,
        "Exact, by enumeration of every outcome, under RLOO with the same weight for every prompt. So the extra "
        "weight is a bias of stopping at a correct response, and not only of the number of samples. It is what the "
        "paper describes, and it changes the objective that is optimised. The uniform control is 1.00 at every rate.",
    )


def shapes(found: Mapping[str, Values]) -> Finding:
    run, exact = found["ar3po.recorded"], found["ar3po.stages"]
    learnt = {
        "2x4": found["ar3po.reuse"],
        "4x2": found["ar3po.shape_4x2"],
        "1x8": found["controls.uniform_8_grpo"],
    }
    other = difference(learnt["4x2"]["area"], learnt["2x4"]["area"])
    whole = difference(learnt["1x8"]["area"], learnt["2x4"]["area"])
    rows = [
        [
            name,
            f"{run['rollouts'][name][0]:.2f}",
            f"{run['hits_per_100'][name]:.1f}",
            f"{run['mixed_per_100'][name]:.2f}",
            *(f"{exact[name]['ratio'][exact['at'].index(p)]:.2f}" for p in (0.1, 0.5, 0.9)),
            interval(learnt[name]["area"]) if name in learnt else "-",
            interval(learnt[name]["end"]) if name in learnt else "-",
        ]
        for name in STAGES
    ]
    return Finding(
        f"area of 4x2 {other.signed}, of 1x8 {whole.signed} against 2x4",
        _best([sign(other), sign(whole)]),
        "Other shapes less 2x4, at equal rollouts, all at a rate of 1e-3. The claim fails if another shape is ahead "
        "of 2x4, holds if all are behind, and holds under conditions if one is. All shapes have at most 8 rollouts, "
        "so the same prompts get a correct response. Smaller stages find them with fewer rollouts, and bias the "
        "gradient more. A prompt that leaves 8x1 at its first rollout has no gradient.",
        [
            "stages x rollouts",
            "rollouts, recorded",
            "prompts with a correct one per 100 rollouts",
            "mixed groups per 100 rollouts",
            "gradient over the true one at p = .1",
            "at .5",
            "at .9",
            "area, lab",
            "success at the end, lab",
        ],
        rows,
    )


def _best(signs: Sequence[int]) -> Verdict:
    """Return whether a choice is best, by the signs of the others' differences to it."""
    if 1 in signs:
        return Verdict.FAILS
    return Verdict.HOLDS if set(signs) == {-1} else Verdict.CONDITIONS if -1 in signs else Verdict.OPEN


def store(found: Mapping[str, Values]) -> Finding:
    size, time = found["ar3po.memory"], found["ar3po.lookup"]
    run = found["ar3po.recorded"]
    steps = [time[name]["ms_a_step_4096_tokens"] for name in time]
    flat = max(steps) < 2 * min(steps)
    fits = min(own["prompts_in_a_gib"] for own in size.values()) >= run["prompts"]
    rows = [
        [name, f"{own['mib_per_1000_prompts']:.0f}", f"{own['peak_mib']:.0f}", f"{own['prompts_in_a_gib']:,}"]
        for name, own in size.items()
    ]
    bounds = {name: headline("ar3po", f"option_ii_{name}", "after reuse") for name in ("8", "38", "75")}
    ids = size["ids"]["mib_per_1000_prompts"]
    return Finding(
        f"{ids:.0f} MiB per 1,000 prompts, {max(steps):.0f} ms a step with 128 prompts",
        Verdict.HOLDS if flat and fits else Verdict.CONDITIONS if fits else Verdict.FAILS,
        "The store keeps 4 responses a prompt of 4,096 tokens, the paper's longest, and at most a gibibyte in all. "
        "The verdict is positive if the recorded run's problems fit and if the time does not grow with the prompts "
        "held, from 1,000 to 100,000. The time is that of hashing the rollouts of the step. A bound below the size of "
        f"the data set costs the hits: with room for 8, 38 and 75 of 128 prompts {bounds['8']}, {bounds['38']} and "
        f"{bounds['75']} of the groups stay without a correct response, against "
        f"{headline('ar3po', 'option_ii', 'after reuse')} (benchmarks/results/ar3po.md). A later checkpoint of verl "
        f"takes {headline('verl_checkpoints', CHECKPOINTS, 'further s')} s for 200 new responses of 10,000, on a busy "
        "machine.",
        ["kept of a response", "MiB per 1,000 prompts", "peak MiB while filling", "prompts in a GiB"],
        rows,
    )


def accounting(found: Mapping[str, Values]) -> Finding:
    runs = {name: own for name, own in found.items() if "exact" in own}
    worst = min(min(own["exact"]) for own in runs.values())
    steps = sum(sum(own["steps"]) for own in runs.values())
    return Finding(
        f"{worst:.0%} of {steps:,} steps add up in the worst run",
        Verdict.HOLDS if worst == 1 else Verdict.FAILS,
        "In every step of every run the rollouts asked for are those that the sampler made, and each one is in a "
        "trained group, replaced by a reused response, or in a group that was dropped.",
    )
