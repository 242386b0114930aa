"""The modules of the claims, by paper, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim

PAPERS: Mapping[str, tuple[str, ...]] = {
    "Controls": ("controls",),
    "VIP (arXiv 2602.01601)": (),
    "HORA (arXiv 2605.07114)": (),
    "AR3PO (arXiv 2509.25808)": (),
    "OptPO (arXiv 2512.02882)": ("optpo", "optpo_votes", "optpo_theory"),
    "A real language model": (),
    "Combinations that no paper tried": ("optpo_combined",),
}
"""The modules of each chapter. Each has ``CELLS`` and ``CLAIMS``; the names of its cells begin with its own name."""


def cells_by_module() -> dict[str, dict[str, Cell]]:
    """Return the cells of every module, by their names."""
    found: dict[str, dict[str, Cell]] = {}
    for module in (module for modules in PAPERS.values() for module in modules):
        own: dict[str, Cell] = _module(module).CELLS
        wrong = [name for name in own if not name.startswith(f"{module}.")]
        if wrong:
            raise ValueError(f"the names of the cells of {module} must begin with it, got {wrong[0]}; rename it")
        found[module] = own
    return found


def claims_of(module: str) -> tuple[Claim, ...]:
    """Return the claims of a module."""
    return tuple(_module(module).CLAIMS)


def _module(name: str):
    return import_module(f"benchmarks.evidence.{name}")
