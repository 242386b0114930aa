"""Count answers that another tool recorded: how many of them a stopping rule would have taken, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.records import RunRecord
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.stopping import Fixed, decide
from apportion.vote.setup import rule_for

MOST_SAMPLES = 64
LEAST_SAMPLES = 2


@dataclass(frozen=True)
class RecordedVote:
    """The result of a rule on recorded answers.

    Args:
        name: of the run.
        rule: the stopping rule.
        questions: groups with as many recorded samples as the vote may take.
        left_out: groups with fewer.
        max_samples: the most samples of a question.
        samples: mean samples of a question.
        agreement: share of the questions whose winner is that of all ``max_samples``.
        accuracy, full_accuracy: share of right winners of the rule, and of all samples; None without verdicts.
        doubts: what may have been read otherwise.
    """

    name: str
    rule: str
    questions: int
    left_out: int
    max_samples: int
    samples: float
    agreement: float
    accuracy: float | None
    full_accuracy: float | None
    doubts: tuple[str, ...]

    def to_json(self) -> str:
        """Return one JSON object."""
        return json_text(self)

    def to_text(self) -> str:
        """Return the numbers as a table."""
        rows = [
            ["rule", self.rule],
            ["questions", f"{self.questions:,}"],
            ["left out, with fewer samples", f"{self.left_out:,}"],
            ["samples", f"{self.samples:.2f} of {self.max_samples}"],
            ["agreement with all samples", f"{self.agreement:.2%}"],
        ]
        if self.accuracy is not None and self.full_accuracy is not None:
            rows.append(["right winners", f"{self.accuracy:.2%}, with all samples {self.full_accuracy:.2%}"])
        return text_table(rows, align="lr")


def revote_record(
    record: RunRecord,
    *,
    target: str | None = None,
    rule: str | None = None,
    rule_settings: Mapping[str, Any] | None = None,
    max_samples: int | None = None,
    curtail: bool = True,
) -> RecordedVote:
    """Return the result of a rule on the answers of ``record``, in their order. Equal texts are equal answers.

    Each group is a question. ``max_samples`` is by default the usual size of a group, and at most 64. Raises ValueError
    if answers were not recorded, or for an unknown rule or target.
    """
    if not (record.answer >= 0).any():
        raise ValueError(
            f"a vote needs the answers of the samples, got none in {record.name}; name them by --column answer=COLUMN"
        )
    made = rule_for(target, rule, rule_settings or {})
    sizes = np.diff(record.first)
    most = min(MOST_SAMPLES, int(np.median(sizes))) if max_samples is None else max_samples
    if most < LEAST_SAMPLES:
        raise ValueError(f"a vote needs {LEAST_SAMPLES} samples of a question, got {most}; record more")
    chosen = np.flatnonzero(sizes >= most)
    if not len(chosen):
        raise ValueError(
            f"max_samples must be at most {int(sizes.max())}, the samples of a question, got {most}; lower it"
        )
    streams, right = [], []
    for first in record.first[chosen]:
        answers = record.answer[first : first + most].tolist()
        streams.append([None if answer < 0 else str(answer) for answer in answers])
        rewards = record.reward[first : first + most]
        right.append({each for each, reward in zip(streams[-1], rewards, strict=True) if reward == 1} - {None})
    stopped, full = decide(streams, made, most, curtail=curtail), decide(streams, Fixed(), most)
    known = record.binary and not np.isnan(record.reward).any()

    def accuracy(winners: Sequence[str | None]) -> float | None:
        return float(np.mean([each in own for each, own in zip(winners, right, strict=True)])) if known else None

    return RecordedVote(
        name=record.name,
        rule=", ".join([made.name, *(f"{key} = {value}" for key, value in vars(made).items() if value is not None)]),
        questions=len(chosen),
        left_out=len(sizes) - len(chosen),
        max_samples=most,
        samples=float(stopped.samples.mean()),
        agreement=float(np.mean([one == other for one, other in zip(stopped.answer, full.answer, strict=True)])),
        accuracy=accuracy(stopped.answer),
        full_accuracy=accuracy(full.answer),
        doubts=record.doubts,
    )
