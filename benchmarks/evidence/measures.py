"""What a row of ``claims.toml`` can say of the values: functions of ``m``, the values by the name of their cell.

Each yields effects. A row names the function and gives its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise, product

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.common import headline
from benchmarks.evidence import language_model_runs as model
from benchmarks.evidence import printed
from benchmarks.evidence.cell import Values
from benchmarks.evidence.rules import Effect, exact, instances, share

Measured = Mapping[str, Values]
Effects = Iterator[Effect]
PLACES = {"points": (100.0, "+.1f"), "": (1.0, "+.3f")}
LOSS = -0.03
"""The largest loss of mean@16 that still counts as comparable."""
MATTERS = 0.02
"""The smallest gain of success, area or pass@k that matters. Of mean@16 it is -``LOSS``."""


def effects(m, row):
    """Yield the effects of a row: of the function that it names ``by``, with the other entries as its arguments."""
    given = {"by": "less", **row}
    yield from (vars(printed) | globals())[given.pop("by")](m, **given)


def at(m, path, key=""):
    """Return what lies at ``cell: key/key`` of the values; a key of a list is that of each of its members.

    A path without keys has ``key``.
    """
    cell, _, keys = path.partition(": ")
    return under(m[cell], keys or key)


def under(found, keys):
    """Return what lies at ``key/key``; a number is a place of a list of figures."""
    for key in keys.split("/") if keys else ():
        if not isinstance(found, list):
            found = found[key]
        else:
            found = [each[key] for each in found] if isinstance(found[0], Mapping) else found[int(key)]
    return found


def over_seeds(name, values, form="+.3f", **bounds):
    """Return the effect of values, one a seed."""
    found = SeedInterval.of([float(each) for each in values])
    half = found.half_width or 0.0
    return Effect(name, found.mean, found.mean - half, found.mean + half, len(values), form=form, **bounds)


def given(name, found, form="+.3f", **bounds):
    """Return the effect of a mean and its half width, or of a figure and the ends of its interval."""
    low, high = (found[0] - found[1], found[0] + found[1]) if len(found) == 2 else found[1:]
    return Effect(name, found[0], low, high, form=form, **bounds)


def apart(name, mine, control, form="+.3f", **bounds):
    """Return the effect of the difference of two figures, each with its half width, that are not paired."""
    return given(name, (mine[0] - control[0], float(np.hypot(mine[1], control[1]))), form, **bounds)


def numbers(text):
    """Return the numbers with a point in a text.

    >>> numbers("49.5% ± 1.2%")
    [49.5, 1.2]
    """
    return [float(each) for each in re.findall(r"[-+]?\d+\.\d+", text)]


def tabled(name, text, **bounds):
    """Return the effect of a cell of a table with five seeds: "49.5% ± 1.2%" or "+0.025 ± 0.042"."""
    mean, half = numbers(text)
    scale, form = (100, ".1%") if "%" in text else (1, "+.3f")
    return Effect(name, mean / scale, (mean - half) / scale, (mean + half) / scale, 5, form=form, **bounds)


def paired(mine, control):
    """Return the values of the seeds that both have. Seeds count from 0, and the control may be one figure for all.

    >>> paired([1.0, 2.0, 3.0], [0.5, 0.5])
    (array([1., 2.]), array([0.5, 0.5]))
    """
    both = len(mine) if np.ndim(control) == 0 else min(len(mine), np.size(control))
    return np.asarray(mine)[:both], np.broadcast_to(control, np.shape(control) or both)[:both]


def less(m, name, mine, control, key="area", unit="", **bounds):
    """Yield a difference, paired by seed. The control may be one figure for all seeds."""
    scale, form = PLACES[unit]
    matters = scale * (-LOSS if key == "mean_16" else MATTERS)
    gap = np.subtract(*paired(at(m, mine, key), at(m, control, key)))
    yield over_seeds(name, scale * gap, form, **(bounds or {"above": 0.0, "matters": matters}))


def saved(m, name, mine, control, key="rollouts"):
    """Yield the share of the control's that is saved, paired by seed."""
    yield over_seeds(name, 1 - np.divide(*paired(at(m, mine, key), at(m, control, key))), ".1%", above=0.0)


def times(m, name, mine, control, key="", form=".2f", **bounds):
    """Yield a ratio, paired by seed."""
    yield over_seeds(name, np.divide(at(m, mine, key), at(m, control, key)), form, **bounds)


def level(m, name, path, form=".3f", **bounds):
    """Yield a figure as it is: over seeds, or one for all."""
    found = at(m, path)
    yield over_seeds(name, found, form, **bounds) if isinstance(found, list) else exact(name, found, form, **bounds)


def interval(m, name, path, form=".3f", **bounds):
    """Yield a figure that was measured with its interval."""
    yield given(name, at(m, path), form, **bounds)


def of_each(m, of, path, name="{}:", form=".1%", **bounds):
    """Yield a figure of each setting of a kind, if it has one: with its interval if the figure is a list."""
    for where, own in SETTINGS[of](m):
        found = under(own, path)
        if found not in (None, []):
            yield (given if isinstance(found, list) else exact)(name.format(where), found, form, **bounds)


# VIP, what a policy learns


def higher_evaluations(m):
    mine, control = (np.array(at(m, f"{cell}_8_rloo: curve")) for cell in ("vip_learning.gp", "controls.uniform"))
    yield exact("evaluations with a higher mean curve", float((mine > control)[1:].sum()), ".0f")


# VIP, prediction, assumptions, allocation

PHASES = ("1 to 10", "11 to 30", "31 to 55")
RIVALS = ("moving average", "ridge")
LABS = {"hard base": "vip_prediction.lab_hard", "medium base": "vip_prediction.lab_medium"}


def predicted(m):
    for (setting, cell), rival, phase in product(LABS.items(), RIVALS, PHASES):
        errors = m[cell]["errors"]
        gap = np.subtract(errors["gp"]["exact p"][phase], errors[rival]["exact p"][phase])
        yield over_seeds(f"{setting}, {rival}, steps {phase}", gap, below=0.0)
    for rival, phase in product(RIVALS, PHASES):
        found = m["vip_prediction.recorded"]["gp less"][rival]["group"][phase]
        yield given(f"recorded run, {rival}, steps {phase}", found, below=0.0)


def predicted_means(m):
    for setting, cell, target in (
        *((setting, cell, "exact p") for setting, cell in LABS.items()),
        ("recorded run", "vip_prediction.recorded", "group"),
    ):
        for name, found in m[cell]["errors"].items():
            whole = found[target]["all"]
            label = f"{setting}, {name}"
            yield over_seeds(label, whole, ".3f") if isinstance(whole, list) else exact(label, whole, ".3f")


def holm(p_values):
    """Return p-values adjusted for their number, after Holm (1979), in their order.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def assumption_settings(m, kinds):
    for kind in kinds:
        note = ", sum of entries" if kind == "sum of entries" else ""
        for base in ("hard", "medium"):
            for point, own in m[f"vip_assumptions.lab_{base}"].items():
                yield f"{base} base, {int(point):,} rollouts{note}", own[kind]
        for task, own in m["vip_assumptions.model"].items():
            if kind in own:
                yield f"SmolLM2, {task}", own[kind]


def rejected(m, kinds):
    """Yield tests by shuffles: a setting is refuted if all its own tests reject after Holm."""
    found = list(assumption_settings(m, kinds))
    adjusted = iter(holm([test["by shuffles"] for _, own in found for test in own["tests"].values()]))
    for name, own in found:
        worst = max(next(adjusted) for _ in own["tests"])
        both = " and ".join(f"{test} {_p(each['p'])}" for test, each in own["tests"].items())
        text = f"{name}: {both}; the larger p by shuffles, after Holm:"
        yield exact(text, worst, ".3f", decided=-(worst < 0.05))


def _p(value):
    return "below 1e-300" if value < 1e-300 else f"{value:.0e}" if value < 0.001 else f"{value:.3f}"


def rejected_again(m, tests):
    found = m["vip_assumptions.again"].values()
    samples = sum(own["runs"] for own in found)
    for test in tests:
        number = sum(own[test] for own in found)
        yield exact(f"samples of eight other runs of the lab, of {samples}, that {test}'s test rejects", number, ".0f")


def identity(m):
    for estimator, name in (("dr_grpo", "Dr. GRPO"), ("rloo", "RLOO")):
        for p, (ratio, error, _) in m["vip_assumptions.formula"][estimator].items():
            yield given(f"{name}, p = {p}", (ratio, 1.96 * error), ".3f", above=0.95, below=1.05)


def lab_variance(_):
    for band in ("0.05 to 0.2", "0.2 to 0.4", "0.4 to 0.6", "0.6 to 0.8", "0.8 to 0.9", "0.9 to 0.95", "0.95 to 0.99"):
        found = numbers(headline("gradient_variance", band, "total variance"))
        yield given(f"lab, p of {band}: times the formula", found, ".2f")


def relaxed(m):
    cell = m["vip_allocation.relaxed"]
    found = [cell[name] for name in ("rloo", "dr_grpo")]
    wrong = sum(each["instances"] for each in found if each["largest"] > 1e-9)
    yield instances("bisection above another solver", wrong, sum(each["instances"] for each in found))


def rounded(m, key, name):
    cells = (m[f"vip_allocation.{each}"] for each in ("rloo", "dr_grpo"))
    found = [own for cell in cells for setting, own in cell.items() if setting != "example"]
    yield instances(name, sum(own[key] for own in found), sum(own["instances"] for own in found))


def rounded_example(m):
    loss = m["vip_allocation.rloo"]["example"]["paper"]
    yield exact("an example, above the optimum by", loss, ".2%", decided=-(loss > 1e-9))


def shapes_by_p(m):
    counts = m["vip_allocation.counts_by_p"]["counts"]
    middle = len(m["vip_allocation.counts_by_p"]["p"]) // 2

    def peaks(own):
        return all(a <= b for a, b in pairwise(own[: middle + 1])) and all(a >= b for a, b in pairwise(own[middle:]))

    right = {
        "VIP, RLOO": peaks(counts["VIP, RLOO"]),
        "VIP, Dr. GRPO": peaks(counts["VIP, Dr. GRPO"]),
        "inverse accuracy": all(a >= b for a, b in pairwise(counts["inverse accuracy"])),
        "inverse variance": peaks([-n for n in counts["inverse variance"]]),
    }
    for name, own in right.items():
        first, half, last = counts[name][0], counts[name][middle], counts[name][-1]
        text = f"{name}: {first}, {half}, {last} at p of 0.02, 0.5 and 0.98; as claimed"
        yield exact(text, float(own), ".0f", decided=1 if own else -1)


STEPS = {"1.5B": 2781.2 + 627.68 + 263.9, "7B": 3134.4 + 1388.8 + 713.5}
"""Seconds of the paper's training step without VIP: the sums of its Table 4."""


def overhead(_):
    setup, update = (float(headline("gp", "17,000", f"ours: {what}, s").split()[0]) for what in ("setup", "update"))
    column = "milliseconds: median (least to most)"
    solved = float(headline("solver", "512 | ours, rloo", column).split()[0]) / 1000
    for name, step in STEPS.items():
        yield exact(f"share of the paper's step, {name}", (setup + update + solved) / step, ".4%", below=0.0112)


# HORA

EPOCHS = ("at the start", "after 1 epoch", "after 2 epochs")


def states(m):
    for base in ("easy", "medium", "hard"):
        for epoch, found in zip(EPOCHS, m[f"hora_hits.{base}"]["epochs"], strict=True):
            yield f"{base} {epoch}", found


def hits(m, mine, control, kind, name, later=False, **bounds):
    """Yield the difference of two rules in points, in each state of a run, or in later states alone."""
    for state, found in states(m):
        if later and state.endswith(EPOCHS[0]):
            continue
        own = found["gains"][mine][kind]
        other = np.zeros(len(own)) if control == "uniform" else found["gains"][control][kind]
        yield over_seeds(f"{name}, {state}", np.subtract(own, other), "+.2f", **(bounds or {"above": 0.0}))


def toward_hard(m):
    for state, found in states(m):
        prompts, extra = found["figure_3"]["prompts"], found["figure_3"]["rollouts"]
        each = [8 * own / part if part else 0.0 for part, own in zip(prompts, extra, strict=True)]
        falling = all(a > b for a, b in pairwise(each))
        name = f"{state}: extra rollouts of prompts without a right one"
        yield exact(name, extra[0], ".0%", decided=1 if falling else -1)


def recorded_priors(_):
    for epoch in (1, 2, 7):
        mine, fixed = (
            numbers(headline("real_run", f"{prior}, hits", f"epoch {epoch}"))
            for prior in ("empirical Bayes", "one half for all")
        )
        name = f"recorded run, visit {epoch + 1}, empirical Bayes, hits over uniform's"
        yield apart(name, (mine[0], mine[2] - mine[0]), (fixed[0], fixed[2] - fixed[0]), below=0.01)


def calibrated(m):
    for state, found in states(m):
        own = found["calibration"]["uniform"]
        for right, (a, b) in enumerate(zip(own["predicted"], own["true"], strict=True)):
            yield exact(
                f"{state}, {right} right of 4: predicted less true chance", a - b, "+.2f", above=-0.05, below=0.05
            )


def hora_theory(m):
    found = m["hora_hits.theory"]
    yield instances("concave", round((1 - found["concave"]) * 10_000), 10_000)
    yield instances("greedy as good as the best of all allocations", round((1 - found["optimal"]) * 300), 300)


def without_reward(m):
    found = m["hora_hits.rare"]
    uneven = round((1 - found["even"]) * found["plans"])
    yield instances("batches without a right or without a wrong one, an uneven split", uneven, found["plans"])
    for p, each in found["equal"].items():
        if float(p) <= 0.01:
            yield exact(f"p = {p}: extra rollouts that change prompts", each["moved"], ".3%", below=0.05)


# AR3PO


def bands(m):
    recorded, lab = m["ar3po.recorded"]["rollouts_by_band"], m["ar3po.reuse"]["bands"]
    for name, own in (("recorded run", recorded), ("lab", lab)):
        falls = bool((np.diff(own) < 0).all())
        yield exact(f"{name}, hardest band {own[0]:.2f}, easiest", own[-1], decided=1 if falls else -1)
    yield exact("recorded run, hardest band less 6.95:", recorded[0] - 6.95, "+.2f", above=-0.5, below=0.5)
    yield exact("recorded run, easiest band less 4:", recorded[-1] - 4, "+.2f", above=-0.1, below=0.1)


def stage_weights(m):
    found = m["ar3po.stages"]
    for (p, low), (q, high) in pairwise(zip(found["at"], found["2x4"]["ratio"], strict=True)):
        yield exact(
            f"gradient over the true one at {p:g}, {low:.2f}, less that at {q:g}:", low - high, "+.2f", above=0.0
        )


def store(m):
    size, time = m["ar3po.memory"], m["ar3po.lookup"]
    fits = min(own["prompts_in_a_gib"] for own in size.values())
    yield exact("prompts that fit a GiB, of 1,209 needed:", fits, ",.0f", above=m["ar3po.recorded"]["prompts"])
    steps = [time[name]["ms_a_step_4096_tokens"] for name in time]
    yield exact("time with 100,000 prompts over that with 1,000:", steps[-1] / steps[0], below=2.0)


# OptPO

VOTES = {
    "Game of 24 with chain of thought": "optpo_votes.game24_cot",
    "Game of 24 without": "optpo_votes.game24_standard",
    "lab, temperature 1": "optpo_votes.lab_plain",
    "lab, temperature .6": "optpo_votes.lab_cold",
}


def retained(_):
    gained = tabled("", headline("label_free_settings", "N_32", "- paper"))
    more = tabled("", headline("label_free_settings", "N_32", "rollouts saved"))
    saving, half = 1 - 1 / (1 - more.mean), (more.high - more.low) / 2
    yield Effect("rollouts saved", saving, saving - half, saving + half, 5, above=0.0, form=".1%")
    yield Effect("mean@16", -gained.mean, -gained.high, -gained.low, 5, above=LOSS)


def at_equal_tokens(m, other, name):
    mine, theirs, ahead = m["optpo.learn_optpo"], m[f"optpo.learn_{other}"], []
    for seed in range(len(mine["mean_16"])):
        spent = min(mine["tokens"][seed], theirs["tokens"][seed])
        a, b = (
            float(np.interp(spent, each["tokens_by_seed"][seed], each["mean_16_by_seed"][seed]))
            for each in (mine, theirs)
        )
        ahead.append(a - b)
    yield over_seeds(name, ahead, above=0.0)


def lower_boundary(m):
    found = [m[cell]["lower_boundary"] for cell in VOTES.values()]
    least, boundary = min(each["least"] for each in found), found[0]["boundary"]
    name = f"the boundary log B is {boundary:.2f}; least log Lambda at kappa > 1:"
    yield exact(name, least, below=boundary)


def factor(m):
    for where, cell in VOTES.items():
        mine, right = (m[cell][key] for key in ("majority_share", "right_samples"))
        yield apart(f"{where}: majority's share less share of right samples", mine, right, "+.1%", above=0.0)
    for where, cell in VOTES.items():
        errors = {key: float(error) for key, error in m[cell]["error_by_factor"].items()}
        yield exact(f"{where}: error of p_0 with .6 less that with 1", errors["0.6"] - errors["1.0"], "+.3f", below=0.0)


def table_4(m):
    for error in ("0.01", "0.1"):
        text = headline("label_free_settings", f"alpha_beta_{error}", "- paper")
        yield tabled(f"learning, mean@16 at {error} less that at .05:", text, above=LOSS)
    for where, cell in VOTES.items():
        tight, loose = (m[cell]["rules"][f"N32_error_{error}"] for error in ("0.01", "0.1"))
        gap = (tight["samples"][0] - loose["samples"][0]) / 64
        yield exact(f"{where}: saving at .1 less that at .01", gap, "+.1%", above=0.0)
        yield given(f"{where}: right labels at .1 less the full vote's", loose["right_less_full"], "+.1%", above=-0.01)


def table_4_savings(m):
    for where, cell in VOTES.items():
        for error in ("0.01", "0.1"):
            saving = 1 - m[cell]["rules"][f"N32_error_{error}"]["samples"][0] / 64
            yield exact(f"{where}: saving at {error}", saving, ".1%")


def better_rule(m):
    for where, cell in VOTES.items():
        samples, differ = (m[cell]["calibrated_less_paper"][key] for key in ("samples", "disagree"))
        beaten = samples[0] + samples[1] < 0 and differ[0] - differ[1] <= 0
        ahead = samples[0] - samples[1] > 0 and differ[0] + differ[1] >= 0
        name = f"{where}: disagreement {differ[0]:+.2%} ± {differ[1]:.2%}, samples of `calibrated` less OptPO's"
        yield Effect(name, samples[0], samples[0] - samples[1], samples[0] + samples[1],
                     decided=-1 if beaten else int(ahead), form="+.1f")  # fmt: skip


def kept_alpha(m, cell):
    return ((name.split(", alpha")[0], each) for name, each in m[cell].items() if name.endswith("alpha 0.05"))


SETTINGS = {
    "correlations": lambda m: assumption_settings(m, ["correlation"]),
    "votes": lambda m: ((where, m[cell]) for where, cell in VOTES.items()),
    "wald": lambda m: kept_alpha(m, "optpo_theory.wald"),
    "promise": lambda m: kept_alpha(m, "optpo_theory.promise"),
    "norms": lambda m: model.checkpoints(m).items(),
}
"""What yields the settings of a kind, each with its values, by the name that a row has."""


# A language model


def model_gain(m, rule, control):
    mine, theirs = ([model.area(each) for each in model.runs_of(m, own)] for own in (rule, control))
    yield over_seeds(f"area over {control}", np.subtract(mine, theirs), above=0.0, matters=MATTERS)


def model_seconds(m, rule, control):
    mine, theirs = model.runs_of(m, rule), model.runs_of(m, control)
    shortest = min(each["cpu_seconds"][-1] for each in (*mine, *theirs))
    a, b = ([model.at_seconds(each, shortest) for each in own] for own in (mine, theirs))
    yield over_seeds(f"success at equal processor seconds over {control}", np.subtract(a, b))


def model_prediction(m):
    found = [each["predictors"] for each in model.runs_of(m, model.CONTROL)]
    mine = [each["GP as printed"]["exact"] for each in found]
    for rival in RIVALS:
        gap = np.subtract(mine, [each[rival]["exact"] for each in found])
        yield over_seeds(f"MAE less that of {rival}", gap, below=0.0)


def model_errors(m):
    found = [each["predictors"] for each in model.runs_of(m, model.CONTROL)]
    for name in ("GP as printed", *RIVALS):
        yield over_seeds(f"MAE, {name}", [each[name]["exact"] for each in found], ".3f")


PAPERS_NORM = "mean over tokens"


def norm_correlation(m):
    for place, each in model.checkpoints(m).items():
        own = each["tests"][PAPERS_NORM]
        p = f"Fisher {model.p_value(own['fisher'])}, Edgington {model.p_value(own['edgington'])}"
        yield given(f"{place}: {p}; mean correlation", own["correlation"], "+.2f", above=-0.1, below=0.1)


def norm_outcomes(m):
    for place, each in model.checkpoints(m).items():
        differ = 0
        for part in each["by_success"]:
            for kind in ("parameters", "logits", "squared"):
                right, wrong = part[kind]["right"], part[kind]["wrong"]
                differ += bool(right and wrong and (right[2] < wrong[1] or wrong[2] < right[1]))
        yield exact(f"{place}: norms with intervals apart", float(differ), ".0f", decided=-bool(differ))


def norm_variance(m):
    found = model.checkpoints(m)
    for place, each in found.items():
        own = each["tests"][PAPERS_NORM]
        larger = max(own["levene"], own["obrien"])
        name = f"{place}: Levene {model.p_value(own['levene'])}, O'Brien {model.p_value(own['obrien'])}; the larger"
        yield exact(name, larger, ".2g", decided=-(larger < 0.05 / 2 / len(found)))


# Combinations


def pairs_lower(m, metric, first, table="OPTPO_TABLE_1"):
    found = printed.optpo_pairs(getattr(printed, table))
    change = found[:, first + 1] - found[:, first]
    up, down = int((change > 1e-9).sum()), int((change < -1e-9).sum())
    yield share(f"{metric}: higher in {up}, lower in", down, len(change), below=0.1)
