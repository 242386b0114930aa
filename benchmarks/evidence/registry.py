"""The modules of the claims, by chapter, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim


@dataclass(frozen=True)
class Chapter:
    """Claims that belong together.

    Args:
        title: its heading.
        name: its file under ``docs/evidence`` and the beginning of its claims' numbers.
        modules: each has ``CELLS`` and ``CLAIMS``. The names of its cells begin with its own name.
    """

    title: str
    name: str
    modules: tuple[str, ...]


CHAPTERS = (
    Chapter("Controls", "controls", ("controls",)),
    Chapter(
        "VIP (arXiv 2602.01601)",
        "vip",
        (
            "vip_learning",
            "vip_prediction",
            "vip_assumptions",
            "vip_allocation",
            "vip_graded",
            "vip_printed",
            "vip_tools",
        ),
    ),
    Chapter("HORA (arXiv 2605.07114)", "hora", ("hora", "hora_hits")),
    Chapter("AR3PO (arXiv 2509.25808)", "ar3po", ("ar3po",)),
    Chapter("OptPO (arXiv 2512.02882)", "optpo", ("optpo", "optpo_votes", "optpo_theory")),
    Chapter("A real language model", "model", ("language_model",)),
    Chapter("Combinations that no paper tried", "combinations", ("combinations", "optpo_combined")),
)
MODULES = tuple(module for chapter in CHAPTERS for module in chapter.modules)


def cells_by_module() -> dict[str, dict[str, Cell]]:
    """Return the cells of every module, by their names."""
    return {module: cells_of(module) for module in MODULES}


def cells_of(module: str) -> dict[str, Cell]:
    """Return the cells of a module, by their names."""
    own: dict[str, Cell] = dict(_module(module).CELLS)
    wrong = [name for name in own if not name.startswith(f"{module}.")]
    if wrong:
        raise ValueError(f"the names of the cells of {module} must begin with it, got {wrong[0]}; rename it")
    return own


def cell_named(name: str) -> Cell | None:
    """Return the cell with that name, or None. Only its own module is imported."""
    module = name.split(".")[0]
    return cells_of(module).get(name) if module in MODULES else None


def claims_of(module: str) -> tuple[Claim, ...]:
    """Return the claims of a module."""
    return tuple(_module(module).CLAIMS)


def _module(name: str) -> ModuleType:
    return import_module(f"benchmarks.evidence.{name}")
