"""The report of a study without labels: what was learnt, how right the votes were, and what they took."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from matplotlib.axes import Axes

from apportion.lab.report.measures import Arm, ArmRuns, Measure, arm_table, headline, mean, over, paired, verdict_on
from apportion.lab.report.picture import Panel, draw_curves, draw_votes
from apportion.lab.report.results import Runs, SeedInterval
from apportion.runs.text_table import markdown_table

SCORES = {
    "mean_16": "mean@16",
    "pass_16": "pass@16",
    "pass_1": "pass@1",
    "maj_16": "maj@16",
    "prompts_success": "exact, prompts",
}
"""Scores on the prompts themselves if gold is known, with their heads: of sampled answers, and exact success."""
JUDGED = ("labels", "labels_right", "false_consensus")
"""Keys of the steps that count labels: those that gold is known for, right ones, and confident wrong ones."""


def _scores(evaluation: int) -> Callable[[ArmRuns], dict[str, SeedInterval]]:
    """Measure ``SCORES`` at one evaluation; {} without gold."""

    def scores(arm: ArmRuns) -> dict[str, SeedInterval]:
        known = SCORES if arm.runs[0].has_gold else ()
        return {key: SeedInterval.of([run.evaluations[key][evaluation] for run in arm.runs]) for key in known}

    return scores


def _of_labels(key: str) -> Callable[[ArmRuns], SeedInterval | None]:
    """Measure ``key`` as a share of the labels, over the seeds with any label that gold is known for; or None."""

    def share(arm: ArmRuns) -> SeedInterval | None:
        shares = [run.per_label(key) for run in arm.runs if run.has_gold and run.steps["labels"].any()]
        return SeedInterval.of(shares) if shares else None

    return share


def _if_gold(value: Callable[[ArmRuns], SeedInterval]) -> Callable[[ArmRuns], SeedInterval | None]:
    return lambda arm: value(arm) if arm.runs[0].has_gold else None


_PERCENT = attrgetter("percent")
MEASURES = (
    Measure("start", _scores(0)),
    Measure("scores", _scores(-1)),
    Measure("mean_16_gain", _if_gold(over(lambda run: run.gain("mean_16")))),
    Measure("mean_16_difference", _if_gold(paired(lambda run, other: run.final("mean_16") - other.final("mean_16")))),
    # Exact success on problems that are never trained on.
    Measure("held_out_start", over(lambda run: run.success[0])),
    Measure("held_out", over(lambda run: run.final("success"))),
    Measure("label_accuracy", _of_labels("labels_right"), "labels right"),
    Measure("false_consensus", _of_labels("false_consensus"), "false consensus"),
    # Prompts whose vote was tied or unanswered have no label and are not trained on.
    Measure("unlabelled", over(lambda run: run.steps["unlabelled"].mean()), "no label"),
    Measure("leader_share", over(lambda run: run.steps["leader_share"].mean()), "leader's share"),
    # KL to the start, in nats per completion.
    Measure("drift", over(lambda run: run.final("drift")), "drift"),
    Measure("rollouts", mean(lambda run: run.final("rollouts")), "rollouts", "{:,.0f}".format),
    Measure("rollouts_saved", paired(lambda run, other: run.saved("rollouts", other)), "saved", _PERCENT),
    Measure("tokens", mean(lambda run: run.final("tokens")), "tokens", "{:,.0f}".format),
    Measure("tokens_saved", paired(lambda run, other: run.saved("tokens", other)), "saved", _PERCENT),
    Measure("updates", mean(lambda run: run.updates), "updates", "{:.0f}".format),
    Measure("cpu_seconds", mean(lambda run: run.cpu_seconds), "CPU s", "{:.0f}".format),
)


def accuracy_table(summary: Sequence[Arm], baseline: str) -> list[str]:
    """Return what was learnt: scores on the prompts, at the start and at the end, and on problems never trained on."""
    first = summary[0]
    rows = [["(start)", *map(str, first.start.values()), "", str(first.held_out_start)]]
    rows += [
        [arm.name, *map(str, arm.scores.values()), arm.mean_16_difference.signed, str(arm.held_out)] for arm in summary
    ]
    return [*markdown_table(["allocator", *SCORES.values(), f"mean@16 - {baseline}", "exact, held out"], rows), ""]


def vote_table(summary: Sequence[Arm]) -> list[str]:
    """Return how right the labels were if gold is known, how the votes ended, and what they took."""
    hidden = () if summary[0].scores else ("label_accuracy", "false_consensus")
    return arm_table([each for each in MEASURES if each.name not in hidden], summary)


def verdict(summary: Sequence[Arm], baseline: str) -> str:
    """Return one sentence: who takes fewer or more rollouts than the baseline beyond noise, and at what accuracy."""
    arms = {arm.name: arm for arm in summary}

    def sentence(beyond: list[str], within: list[str]) -> str:
        parts = [f"{arm} takes {_fewer(arms[arm].rollouts_saved)} rollouts{_at(arms[arm])}" for arm in beyond]
        parts += [f"as many within noise: {', '.join(within)}"] if within else []
        return f"against {baseline}: {'; '.join(parts)}"

    return verdict_on({arm.name: arm.rollouts_saved for arm in summary}, baseline, sentence)


def findings(
    summary: Sequence[Arm], baseline: str, seeds: int, steps: int | None, known: int, prompts: int
) -> list[str]:
    """Return what the tables say in sentences, and what they do not say. Gold is ``known`` for some ``prompts``."""
    lines = [headline(verdict(summary, baseline), seeds)]
    lines += [
        _cost(arm, baseline) for arm in summary if arm.name != baseline and arm.rollouts_saved.half_width is not None
    ]
    gains = [f"{arm.name} {arm.mean_16_gain.signed}" for arm in summary if arm.mean_16_gain is not None]
    lines += [f"Change of mean@16 from the start: {', '.join(gains)}."] if gains else []
    if steps is not None:
        lines.append(f"Every arm takes {steps} steps: what the saved rollouts would buy in further steps is not shown.")
    terms = (
        "Labels right, and false consensus (wrong, though more than half of the samples agree), are shares of the "
        "labels over the whole run. The scores at 16 and pass@1 (greedy) are sampled at the end; exact success is "
        "computed."
    )
    return [
        *lines,
        "",
        *([terms] if known else []),
        "No label: the vote was tied or unanswered. Drift: KL to the start, in nats a completion, on held-out prompts.",
        _gold(known, prompts),
    ]


def _cost(arm: Arm, baseline: str) -> str:
    """Return what one arm saves and what its accuracy is then, each beyond noise or not."""
    saved, difference = arm.rollouts_saved, arm.mean_16_difference
    cost = f"{arm.name} takes {_fewer(saved)} rollouts and {_fewer(arm.tokens_saved)} tokens than {baseline}"
    cost += ", within noise" if saved.contains_zero else ", beyond noise"
    if difference is None:
        return f"{cost}; what that does to accuracy is not shown."
    if not difference.contains_zero:
        side = "lower" if difference.mean < 0 else "higher"
        return f"{cost}; its mean@16 is {side} beyond noise ({difference.signed})."
    loss = max(0.0, (difference.half_width or 0.0) - difference.mean)
    return f"{cost}; its mean@16 is within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out."


def _fewer(saved: SeedInterval) -> str:
    """Return a saving in words: 35.2% ± 1.4% fewer."""
    if saved.mean >= 0:
        return f"{saved.percent} fewer"
    return f"{SeedInterval(-saved.mean, saved.half_width).percent} more"


def _at(arm: Arm) -> str:
    return "" if arm.mean_16_difference is None else f" at mean@16 {arm.mean_16_difference.signed}"


def _gold(known: int, prompts: int) -> str:
    if not known:
        return f"No right answer is given for the {prompts} prompts, so only votes and drift are shown."
    if known < prompts:
        return (
            f"Right answers are given for {known} of the {prompts} prompts: sampled scores and shares of labels are "
            "over these, exact success is over all."
        )
    return f"Right answers are known for all {prompts} prompts. The report alone reads them; no update does."


def panels(runs: Runs) -> list[Panel]:
    """Return the panels of the picture. Without gold, drift replaces mean@16, and unity replaces accuracy."""
    learnt: tuple[str, str, str, int | None]
    shares: tuple[str, str, str | None]
    if all(run.has_gold for mine in runs.values() for run in mine):
        learnt = ("mean_16", "mean@16 on the prompts", "Learning (thin: one seed)", 1)
        shares = ("labels_right", "false_consensus", "labels")
        votes = ("share of the labels", "Right labels; dashed: false consensus")
    else:
        learnt = ("drift", "KL to the start, nats a completion", "Drift (thin: one seed)", None)
        shares = ("leader_share", "unlabelled", None)
        votes = ("share", "Leader's share of the samples; dashed: no label")
    key, ylabel, title, top = learnt

    def learning(axes: Axes) -> None:
        draw_curves(axes, runs, key, ylabel=ylabel, title=title, ylim=(0, top))

    def voting(axes: Axes) -> None:
        draw_votes(axes, runs, *shares, ylabel=votes[0], title=votes[1], ylim=(0, 1))

    return [learning, voting]
