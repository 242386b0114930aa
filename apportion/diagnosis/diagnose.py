"""Everything that a recorded run says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apportion.diagnosis.advice import AdviceList, advice_of
from apportion.diagnosis.beliefs import Foresight, foresight_of
from apportion.diagnosis.coverage import RunCoverage, coverage_of
from apportion.diagnosis.drift import RateDrift, drift_of
from apportion.diagnosis.health import RunHealth, health_of
from apportion.diagnosis.phantoms import Phantoms, phantoms_of
from apportion.diagnosis.statements import advice_statements, health_statements, waste_statements
from apportion.diagnosis.waste import Waste, waste_of
from apportion.predictors.embeddings import Embedder
from apportion.records.run_record import RunRecord
from apportion.records.scalars import Scalars
from apportion.types import html_table


@dataclass(frozen=True)
class Diagnosis:
    """What a run wasted, what could have been known, and what would help.

    Args:
        name, source: of the record.
        binary: whether all rewards are 0 or 1.
        visits: whether steps are visits of each prompt.
        doubts: what may have been read otherwise.
        health: signs that the run is sick.
        coverage: which prompts were visited, and what became of the rollouts.
        waste: dead groups.
        phantoms: groups of equal outcomes and different rewards; None if outcomes and rewards are not told apart.
        drift: how fast success rates move.
        foresight: how well each predictor would have known.
        advice: what would have helped.
    """

    name: str
    source: str
    binary: bool
    visits: bool
    doubts: tuple[str, ...]
    health: RunHealth
    coverage: RunCoverage
    waste: Waste
    phantoms: Phantoms | None
    drift: RateDrift
    foresight: Foresight
    advice: AdviceList

    def _repr_html_(self) -> str:
        wasted = waste_statements(self.waste, self.phantoms, self.doubts)
        told = {"health": health_statements(self.health), "wasted": wasted, "advice": advice_statements(self.advice)}
        rows = [(kind, line) for kind, lines in told.items() for line in lines]
        return html_table(f"Diagnosis of {self.name} ({self.source})", ("", "what was found"), rows, len(rows))


def diagnose(
    record: RunRecord,
    *,
    embedder: Embedder | None = None,
    rates: Mapping[str, float] | None = None,
    scalars: Scalars | None = None,
) -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        record: the run.
        embedder: embeds the prompts, for predictors that read them.
        rates: known success rates by prompt id, such as those of another model.
        scalars: what the framework logged of each step, for more signs.

    Raises ValueError if the run has no group.

    >>> from apportion.records.reading import record_of_visits
    >>> found = diagnose(record_of_visits([[0, 0], [4, 8]], 8, ["a", "b"]))
    >>> found.waste.dead.value, found.advice.problem
    (0.75, 'advice needs 30 prompts that were visited twice with two rewards or more, this run has 2')
    """
    if not len(record.step):
        raise ValueError(f"a run must have at least one group, got none in {record.name}; check what was recorded")
    health = health_of(record, scalars)
    return Diagnosis(
        name=record.name,
        source=record.source,
        binary=record.binary,
        visits=record.visits,
        doubts=record.doubts,
        health=health,
        coverage=coverage_of(record),
        waste=waste_of(record),
        phantoms=phantoms_of(record),
        drift=drift_of(record),
        foresight=foresight_of(record, embedder, rates),
        advice=advice_of(record, embedder, rates, health),
    )
