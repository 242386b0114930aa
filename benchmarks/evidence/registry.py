"""The cells and the rows: what is measured, and what is claimed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.evidence.rules import Kind

CLAIMS = Path(__file__).parent / "claims.toml"
CHAPTERS = {
    "vip": "VIP (arXiv 2602.01601)",
    "hora": "HORA (arXiv 2605.07114)",
    "ar3po": "AR3PO (arXiv 2509.25808)",
    "optpo": "OptPO (arXiv 2512.02882)",
    "model": "A real language model",
    "combinations": "Combinations that no paper tried",
}
FAST = "Fast regime."
"""How a setting begins whose learning rate is larger than the rates at which all runs are stable."""
KINDS = {"paper": Kind.PAPER, "theorem": Kind.THEOREM, "reading": Kind.READING, "ours": Kind.OURS}
MODULES = (
    "controls", "vip_learning", "vip_prediction", "vip_assumptions", "vip_allocation", "hora", "hora_hits", "ar3po",
    "optpo", "optpo_votes", "optpo_theory", "language_model", "combinations", "optpo_combined",
)  # fmt: skip
"""The beginnings of the names of cells: a file under ``measured`` for each."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of ``claims.toml``.

    Args:
        id: its chapter and number: "vip-1".
        place: the section, table or figure of the paper.
        claim: the claim in one sentence of our own words.
        printed: the paper's figure.
        kind: whose claim it is.
        setting: how our setting differs from the paper's.
        central: it is what the paper is about, so it needs ten seeds.
        quote: the sentence that is read, if it is our reading.
        open: why more seeds would not tell, if its verdict is "cannot be told".
        tells: what its verdict follows from, as arguments of ``measures.effects``.
        beside: the same of controls and further figures.
    """

    id: str
    place: str
    claim: str
    printed: str
    kind: Kind
    setting: str
    tells: Sequence[Mapping[str, Any]]
    beside: Sequence[Mapping[str, Any]] = ()
    central: bool = False
    quote: str = ""
    open: str = ""

    @property
    def chapter(self):
        """The part of the page that it is in."""
        return self.id.rpartition("-")[0]

    @property
    def is_fast(self):
        """Whether it was measured in the fast regime of the lab."""
        return self.setting.startswith(FAST)


def claims():
    """Return all rows, in their order."""
    table = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    settings: Mapping[str, str] = table.pop("settings")
    return [
        Claim(id=name, **{**row, "kind": KINDS[row["kind"]], "setting": settings.get(row["setting"], row["setting"])})
        for name, row in table.items()
    ]


def all_cells():
    """Return every cell by its name."""
    return dict(import_module("benchmarks.evidence.cells").CELLS) | _of_the_model()


def cells_by_module():
    """Return the cells by the beginning of their names."""
    found = all_cells()
    return {module: {name: own for name, own in found.items() if name.split(".")[0] == module} for module in MODULES}


def cell_named(name):
    """Return the cell with that name, or None. TRL is imported for the language model alone."""
    if name.startswith("language_model."):
        return _of_the_model().get(name)
    return import_module("benchmarks.evidence.cells").CELLS.get(name)


def _of_the_model():
    return dict(import_module("benchmarks.evidence.cells_model").CELLS)
