"""Count the answers that somebody else recorded: what a stopping rule would have taken of them, and answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apportion.records import RunRecord
from apportion.runs.text_table import text_table
from apportion.stopping import Fixed, decide
from apportion.vote.setup import rule_for

MOST_SAMPLES = 64
LEAST_SAMPLES = 2


@dataclass(frozen=True)
class RecordedVote:
    """What a rule would have done on recorded answers.

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
        return json.dumps(asdict(self))

    def to_text(self, terminal: bool) -> str:
        """Return the numbers as a table, drawn if it is for a ``terminal``."""
        rows = [
            ["rule", self.rule],
            ["questions", f"{self.questions:,}"],
            ["with fewer samples", f"{self.left_out:,}"],
            ["samples", f"{self.samples:.2f} of {self.max_samples}"],
            ["agreement with all samples", f"{self.agreement:.2%}"],
        ]
        if self.accuracy is not None and self.full_accuracy is not None:
            rows.append(["right winners", f"{self.accuracy:.2%}, with all samples {self.full_accuracy:.2%}"])
        return text_table(rows, align="lr", terminal=terminal)


def revote_record(
    record: RunRecord,
    *,
    target: str | None = None,
    rule: str | None = None,
    rule_settings: Mapping[str, Any] | None = None,
    max_samples: int | None = None,
    curtail: bool = True,
) -> RecordedVote:
    """Return what a rule would have done on the answers of ``record``, in their order. Equal texts are equal answers.

    Each group is a question. ``max_samples`` is by default the usual size of a group, and at most 64. Raises ValueError
    if answers were not recorded, or for an unknown rule or target.
    """
    if not (record.answer >= 0).any():
        raise ValueError(
            f"a vote needs the answers of the samples, got none in {record.name}; name them by --column answer=COLUMN"
        )
    made = rule_for(target, rule, rule_settings or {})
    sizes = np.diff(record.first)
    most = max_samples or min(MOST_SAMPLES, int(np.median(sizes)))
    if most < LEAST_SAMPLES:
        raise ValueError(f"a vote needs {LEAST_SAMPLES} samples of a question, got {most}; record more")
    chosen = np.flatnonzero(sizes >= most)
    if not len(chosen):
        raise ValueError(
            f"max_samples must be at most {int(sizes.max())}, the samples of a question, got {most}; lower it"
        )
    answers = [record.answer[record.first[g] : record.first[g] + most] for g in chosen]
    streams = [[None if each < 0 else str(each) for each in own.tolist()] for own in answers]
    stopped = decide(streams, made, most, curtail=curtail)
    full = decide(streams, Fixed(), most)
    right = [
        {
            str(answer)
            for answer, reward in zip(own.tolist(), record.reward[record.first[g] :][:most], strict=True)
            if reward == 1
        }
        for g, own in zip(chosen, answers, strict=True)
    ]
    accuracies: list[float | None] = [None, None]
    if record.binary and not np.isnan(record.reward).any():
        accuracies = [
            float(np.mean([winner in own for winner, own in zip(each.answer, right, strict=True)]))
            for each in (stopped, full)
        ]
    return RecordedVote(
        name=record.name,
        rule=", ".join([made.name, *(f"{key} = {value}" for key, value in vars(made).items() if value is not None)]),
        questions=len(chosen),
        left_out=len(sizes) - len(chosen),
        max_samples=most,
        samples=float(stopped.samples.mean()),
        agreement=float(np.mean([one == other for one, other in zip(stopped.answer, full.answer, strict=True)])),
        accuracy=accuracies[0],
        full_accuracy=accuracies[1],
        doubts=record.doubts,
    )
