"""The results of a study without labels: what its runs learnt, how right their votes were, and what they took.

Means over seeds with 95% intervals; differences are to the baseline, paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.lab.results import Interval, read_metrics

SAMPLED = ("mean_16", "pass_16", "pass_1", "maj_16")
"""Scores of sampled answers against the gold of the prompts."""
SCORES = (*SAMPLED, "prompts_success")
"""What is said of the prompts themselves where gold is known: ``SAMPLED``, and their exact success."""
JUDGED = ("labels", "labels_right", "false_consensus")


@dataclass(frozen=True)
class LabelFreeRun:
    """One finished run: its evaluations by key [E], the start first, the votes of its steps by key [S], its costs.

    Evaluations have ``SCORES`` and steps ``JUDGED`` only where gold is known.
    """

    evaluations: Mapping[str, NDArray[np.float64]]
    steps: Mapping[str, NDArray[np.float64]]
    cpu_seconds: float
    updates: int

    @property
    def has_gold(self) -> bool:
        """Whether right answers are known, for some of the prompts at least."""
        return "mean_16" in self.evaluations

    def final(self, key: str) -> float:
        """The last evaluation."""
        return float(self.evaluations[key][-1])

    def gain(self, key: str) -> float:
        """The last evaluation less that at the start."""
        return self.final(key) - float(self.evaluations[key][0])

    def saved(self, key: str, other: LabelFreeRun) -> float:
        """The share of ``other``'s rollouts or tokens that this run did without."""
        return 1 - self.final(key) / other.final(key)

    def per_label(self, key: str) -> float:
        """What of ``JUDGED`` as a share of the labels that gold is known for; nan where there are none."""
        labels = self.steps["labels"].sum()
        return float(self.steps[key].sum() / labels) if labels else float("nan")

    @classmethod
    def read(cls, directory: Path) -> LabelFreeRun:
        """The run in ``directory``."""
        evaluated, steps = read_metrics(directory)
        known = "mean_16" in evaluated[0]
        votes = {key: [step[key] for step in steps] for key in (JUDGED if known else ())}
        votes["leader_share"] = [step["allocator"]["leader_share"] for step in steps]
        votes["unlabelled"] = [step["allocator"]["tied"] + step["allocator"]["unanswered"] for step in steps]
        keys = ("rollouts", "tokens", "success", "drift", *(SCORES if known else ()))
        return cls(
            {key: np.array([record[key] for record in evaluated], float) for key in keys},
            {key: np.array(values, float) for key, values in votes.items()},
            sum(step["cpu_seconds"] for step in steps),
            sum(step["rows"] > 0 for step in steps),
        )


@dataclass(frozen=True)
class LabelFreeArm:
    """What one allocator did over all seeds; differences are to the baseline, paired by seed.

    ``scores`` are ``SCORES`` at the end and ``start`` at the start, ``mean_16_gain`` is the one less the other. Without
    gold these are empty, and ``mean_16_difference`` and the shares of labels None. The shares are over the seeds with
    any label that gold is known for; None where there is none.
    """

    name: str
    start: dict[str, Interval]
    scores: dict[str, Interval]
    mean_16_gain: Interval | None
    mean_16_difference: Interval | None
    held_out_start: Interval
    held_out: Interval
    """Exact success on problems that are never trained on."""
    drift: Interval
    """KL to the start, in nats a completion."""
    label_accuracy: Interval | None
    false_consensus: Interval | None
    """Wrong labels that more than half of the samples agree on, as a share of the labels."""
    unlabelled: Interval
    """Share of the prompts whose vote was tied or unanswered: they have no label and are not trained on."""
    leader_share: Interval
    rollouts: float
    tokens: float
    rollouts_saved: Interval
    """As a share of the baseline's."""
    tokens_saved: Interval
    updates: float
    cpu_seconds: float


def summarise_label_free(runs: Mapping[str, Sequence[LabelFreeRun]], baseline: str) -> list[LabelFreeArm]:
    """One LabelFreeArm an allocator; ``runs`` lists the same seeds in the same order for each."""
    return [_arm(name, mine, runs[baseline]) for name, mine in runs.items()]


def _arm(name: str, runs: Sequence[LabelFreeRun], baseline: Sequence[LabelFreeRun]) -> LabelFreeArm:
    def over(value: Callable[[LabelFreeRun], float]) -> Interval:
        return Interval.of([value(run) for run in runs])

    def paired(value: Callable[[LabelFreeRun, LabelFreeRun], float]) -> Interval:
        return Interval.of([value(mine, other) for mine, other in zip(runs, baseline, strict=True)])

    def of_labels(key: str) -> Interval | None:
        shares = [run.per_label(key) for run in runs if run.has_gold and run.steps["labels"].any()]
        return Interval.of(shares) if shares else None

    known = runs[0].has_gold
    return LabelFreeArm(
        name=name,
        start={key: over(lambda run, key=key: run.evaluations[key][0]) for key in SCORES if known},
        scores={key: over(lambda run, key=key: run.final(key)) for key in SCORES if known},
        mean_16_gain=over(lambda run: run.gain("mean_16")) if known else None,
        mean_16_difference=paired(lambda mine, other: mine.final("mean_16") - other.final("mean_16"))
        if known
        else None,
        held_out_start=over(lambda run: run.evaluations["success"][0]),
        held_out=over(lambda run: run.final("success")),
        drift=over(lambda run: run.final("drift")),
        label_accuracy=of_labels("labels_right"),
        false_consensus=of_labels("false_consensus"),
        unlabelled=over(lambda run: run.steps["unlabelled"].mean()),
        leader_share=over(lambda run: run.steps["leader_share"].mean()),
        rollouts=over(lambda run: run.final("rollouts")).mean,
        tokens=over(lambda run: run.final("tokens")).mean,
        rollouts_saved=paired(lambda mine, other: mine.saved("rollouts", other)),
        tokens_saved=paired(lambda mine, other: mine.saved("tokens", other)),
        updates=over(lambda run: run.updates).mean,
        cpu_seconds=over(lambda run: run.cpu_seconds).mean,
    )
