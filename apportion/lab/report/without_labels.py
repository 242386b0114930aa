"""The report of a study without labels: what was learnt, how right the votes were, and what they took."""

from collections.abc import Callable, Sequence

from apportion.lab.report.measures import (
    CPU_SECONDS,
    TOKENS,
    Arm,
    Measure,
    Value,
    arm_table,
    final,
    mean,
    over,
    paired,
    summarise,
    verdict,
)
from apportion.lab.report.results import Run, Runs, SeedInterval
from apportion.lab.training.pool import Pool


def _if_gold(value: Value) -> Value:
    return lambda runs, *others: value(runs, *others) if runs[0].has_gold else None


def _score(key: str) -> Value:
    return _if_gold(final(key))


def _of_labels(key: str) -> Value:
    """Measure ``key`` as a share of the labels, over the seeds with any label that gold is known for; or None."""

    def share(runs: Sequence[Run], *_: object) -> SeedInterval | None:
        shares = [run.per_label(key) for run in runs if run.steps["labels"].any()]
        return SeedInterval.of(shares) if shares else None

    return share


def _of_steps(key: str) -> Value:
    return over(lambda run: run.steps[key].mean())


def _saved(key: str) -> Value:
    return paired(lambda run, other: 1 - run.final(key) / other.final(key))


def _mean_16(end: Callable[[Run, Run], float]) -> Value:
    """Measure the final mean@16 minus another value, of a run and of the baseline's run; None without gold."""
    return _if_gold(paired(lambda run, other: run.final("mean_16") - end(run, other)))


ROLLOUTS_SAVED = Measure("rollouts_saved", _saved("rollouts"), "saved", ".1%")
SCORES = (
    Measure("mean_16", _score("mean_16"), "mean@16"),
    Measure("mean_16_gain", _mean_16(lambda run, _: run.evaluations["mean_16"][0]), "- start", "+.3f"),
    Measure("mean_16_difference", _mean_16(lambda _, other: other.final("mean_16")), "- baseline", "+.3f"),
    Measure("pass_16", _score("pass_16"), "pass@16"),
    Measure("pass_1", _score("pass_1"), "pass@1"),
    Measure("maj_16", _score("maj_16"), "maj@16"),
    Measure("prompts_success", _score("prompts_success"), "exact, prompts"),
    # Exact success on problems that are never trained on.
    Measure("held_out", final("success"), "exact, held out"),
)
"""Columns of what was learned: answers to the prompts if gold is known, and exact success."""
VOTES = (
    Measure("label_accuracy", _of_labels("labels_right"), "labels right"),
    Measure("false_consensus", _of_labels("false_consensus"), "false consensus"),
    # Prompts whose vote was tied or unanswered have no label and are not trained on.
    Measure("unlabelled", _of_steps("unlabelled"), "no label"),
    Measure("leader_share", _of_steps("leader_share"), "leader's share"),
    # KL to the start, in nats per completion.
    Measure("drift", final("drift"), "drift"),
    Measure("rollouts", mean(lambda run: run.final("rollouts")), "rollouts", ",.0f"),
    ROLLOUTS_SAVED,
    TOKENS,
    Measure("tokens_saved", _saved("tokens"), "saved", ".1%"),
    CPU_SECONDS,
)
"""Columns of the votes: how often labels were right if gold is known, how votes ended, and how many samples they
took."""
MEASURES = (*SCORES, *VOTES)


def report(runs: Runs, baseline: str, steps: int | None, pool: Pool) -> tuple[list[Arm], list[str]]:
    """Return the measures of every arm, and the report: two tables and their explanation.

    Every run takes so many ``steps``, if that is its length.
    """
    summary = summarise(MEASURES, runs, baseline)
    found = verdict(summary, ROLLOUTS_SAVED, "rollouts saved of", baseline, len(runs[baseline]))
    lines = [*arm_table(SCORES, summary), "", *arm_table(VOTES, summary), "", found]
    lines += [_accuracy(arm) for arm in summary if arm.name != baseline and arm.rollouts_saved.half_width is not None]
    if steps is not None:
        lines.append(f"Every arm takes {steps} steps: what the saved rollouts would buy in further steps is not shown.")
    if pool.gold:
        lines += [
            "",
            "Labels right, and false consensus (wrong, though more than half of the samples agree), are shares of the "
            "labels over the whole run. The scores at 16 and pass@1 (greedy) are sampled at the end; exact success is "
            "computed.",
        ]
    lines.append(
        "No label: the vote was tied or unanswered. Drift: KL to the start, in nats a completion, on held-out prompts."
    )
    return summary, [*lines, _gold(len(pool.gold), len(pool.problems))]


def _accuracy(arm: Arm) -> str:
    """Return whether the accuracy of an arm differs from the baseline's beyond noise."""
    difference: SeedInterval | None = arm.mean_16_difference
    if difference is None:
        return f"What {arm.name} does to accuracy is not shown."
    if not difference.contains_zero:
        side = "lower" if difference.mean < 0 else "higher"
        return f"The mean@16 of {arm.name} is {side} beyond noise ({difference.signed})."
    loss = max(0.0, (difference.half_width or 0.0) - difference.mean)
    return (
        f"The mean@16 of {arm.name} is within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out."
    )


def _gold(known: int, prompts: int) -> str:
    if not known:
        return f"No right answer is given for the {prompts} prompts, so only votes and drift are shown."
    if known < prompts:
        return (
            f"Right answers are given for {known} of the {prompts} prompts: sampled scores and shares of labels are "
            "over these, exact success is over all."
        )
    return f"Right answers are known for all {prompts} prompts. The report alone reads them; no update does."
