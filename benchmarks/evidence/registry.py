"""The modules of the claims, by paper, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim

PAPERS: Mapping[str, tuple[str, ...]] = {
    "Controls": ("controls",),
    "VIP (arXiv 2602.01601)": (
        "vip_learning",
        "vip_prediction",
        "vip_assumptions",
        "vip_allocation",
        "vip_graded",
        "vip_printed",
        "vip_tools",
    ),
    "HORA (arXiv 2605.07114)": ("hora", "hora_hits"),
    "AR3PO (arXiv 2509.25808)": ("ar3po",),
    "OptPO (arXiv 2512.02882)": ("optpo", "optpo_votes"),
    "A real language model": ("language_model",),
    "Combinations that no paper tried": ("combinations", "optpo_combined"),
}
"""The modules of each chapter. Each has ``CELLS`` and ``CLAIMS``; the names of its cells begin with its own name."""


def cells_by_module() -> dict[str, dict[str, Cell]]:
    """Return the cells of every module, by their names."""
    return {module: cells_of(module) for modules in PAPERS.values() for module in modules}


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
    known = any(module in modules for modules in PAPERS.values())
    return cells_of(module).get(name) if known else None


def claims_of(module: str) -> tuple[Claim, ...]:
    """Return the claims of a module."""
    return tuple(_module(module).CLAIMS)


def _module(name: str) -> ModuleType:
    return import_module(f"benchmarks.evidence.{name}")
