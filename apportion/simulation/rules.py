"""Rules to simulate, written as a short text: an allocator, its predictor, and a selection with its own predictor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from apportion.allocators import ALLOCATORS, Allocator
from apportion.predictors import PREDICTORS, EmpiricalBayes, Predictor
from apportion.selection import SELECTORS, BeliefSelector, Selector, ShuffledEpochs, check_selector
from apportion.simulation.population import Population, place_of
from apportion.toml import choices
from apportion.types import Batch, Belief, Floats, Needs, Prompt
from apportion.untrusted import shown

ORACLE, EMBEDDED = "oracle", "embeddings"
KNOWN_STRENGTH = 1e6
"""Rollouts that the oracle's belief is worth."""

_FORM = re.compile(r"(?P<allocator>\w+)(:(?P<predictor>\w+))?(\+(?P<selector>\w+)(:(?P<reader>\w+))?)?")


@dataclass
class Oracle(Predictor):
    """Knows the exact probability of a reward of every prompt, which nobody does outside a simulation."""

    name: ClassVar[str] = ORACLE
    needs: ClassVar[Needs] = Needs()
    probability: Floats = field(default_factory=lambda: np.zeros(0), init=False, repr=False, compare=False)
    """Of a reward of 1, [Q]; the simulation sets it at every step."""

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        p = self.probability[[place_of(prompt) for prompt in prompts]]
        return Belief(KNOWN_STRENGTH * p, KNOWN_STRENGTH * (1 - p), p * (1 - p))

    def update(self, batch: Batch) -> None:
        """Do nothing, because all is known."""


@dataclass(frozen=True)
class SimulatedRule:
    """What decides in a simulation: ``allocator`` how many rollouts, ``selector`` of which prompts.

    ``name`` is the text that it was made from. ``oracles`` are told the truth at every step.
    """

    name: str
    allocator: Allocator
    selector: Selector
    oracles: tuple[Oracle, ...] = ()

    def _called(self, name: str) -> SimulatedRule:
        return replace(self, name=name)

    def tell(self, probability: Floats) -> None:
        """Tell the oracles the exact probability of a reward of 1, [Q]."""
        for oracle in self.oracles:
            oracle.probability = probability


def make_rule(
    text: str, population: Population, rollouts_per_prompt: int = 8, settings: Mapping[str, Any] | None = None
) -> SimulatedRule:
    """Return the rule ``ALLOCATOR[:PREDICTOR][+SELECTION[:PREDICTOR]]``, each part by its name in the registries.

    The predictor ``oracle`` knows the truth. ``embeddings`` is empirical Bayes with the population's embeddings, which
    every predictor that needs embeddings reads too. Without a selection the prompts come in shuffled epochs, and a
    selection alone goes with ``uniform``. As in training, a selection shares the allocator's predictor if the rule
    names none for it.

    ``settings`` are those of the allocator. Its table ``selection`` has those of the selection, and its ``name`` is the
    rule, if ``text`` is a name of the user's.

    Raises ValueError for another text, an unknown name or setting, or parts that do not fit.

    >>> rule = make_rule("vip:counts+mixed", Population(prompts=8), settings={"low": 4})
    >>> rule.allocator.low, rule.allocator.predictor.name, rule.selector.name
    (4, 'counts', 'mixed')
    """
    from apportion.config import build  # noqa: PLC0415 - pydantic is slow to import

    if not isinstance(settings, Mapping | None):
        raise ValueError(
            f"the settings of {shown(text)} must be a table, got {shown(settings)}; write {text}.KEY=VALUE"
        )
    table = dict(settings or {})
    rule, chosen = table.pop("name", text), table.pop("selection", {})
    found = _FORM.fullmatch(rule) if isinstance(rule, str) else None
    if not found or not isinstance(chosen, Mapping):
        raise ValueError(
            f"a rule must be ALLOCATOR[:PREDICTOR][+SELECTION[:PREDICTOR]], got {shown(rule)}; for example vip:counts"
        )
    if found["allocator"] in SELECTORS and not found["selector"]:
        return make_rule(f"uniform+{rule}", population, rollouts_per_prompt, {**table, "selection": chosen})._called(
            text
        )
    kind = _named(ALLOCATORS, found["allocator"], "allocator")
    allocator = build(kind, table, text)
    if found["predictor"]:
        allocator = replace(allocator, predictor=_predictor(found["predictor"], kind, population))
    allocator = allocator.with_budget(rollouts_per_prompt)
    selection = _named(SELECTORS, found["selector"] or ShuffledEpochs.name, "selection")
    if found["reader"] and not issubclass(selection, BeliefSelector):
        raise ValueError(f"the selection {selection.name} reads no predictor, got {found['reader']}; leave it out")
    selector = build(selection, chosen, f"{text}.selection")
    if found["reader"]:
        selector = replace(selector, predictor=make_predictor(found["reader"], population))
    check_selector(selector, allocator.needs)
    made = (getattr(allocator, "predictor", None), getattr(selector, "predictor", None))
    return SimulatedRule(text, allocator, selector, tuple(each for each in made if isinstance(each, Oracle)))


def make_predictor(name: str, population: Population) -> Predictor:
    """Return the predictor ``name``, on the population's embeddings if it needs embeddings."""
    if name == ORACLE:
        return Oracle()
    if name == EMBEDDED:
        return EmpiricalBayes(population.embedder())
    kind = _named(PREDICTORS, name, "predictor")
    if "predictor" in {each.name for each in fields(kind)}:
        return kind(EmpiricalBayes())
    made = {"embedder": population.embedder()} if _must_embed(kind) else {}
    return kind(**made)


def _predictor(name: str, kind: type[Allocator], population: Population) -> Predictor:
    """Return the predictor ``name`` for the allocator ``kind``. Raise ValueError if it takes none."""
    if "predictor" not in {each.name for each in fields(kind) if each.init}:  # type: ignore[arg-type]
        raise ValueError(f"the allocator {kind.name} takes no predictor, got {shown(name)}; leave it out")
    return make_predictor(name, population)


def _must_embed(kind: type[Predictor]) -> bool:
    """Return whether the predictor has an embedder that is not None by default."""
    found = [each for each in fields(kind) if each.name == "embedder"]  # type: ignore[arg-type]
    return bool(found) and found[0].default is not None


def _named(registry: dict[str, Any], name: str, what: str) -> Any:
    if name not in registry:
        raise ValueError(f"there is no {what} {shown(name)}; {choices(name, registry)}")
    return registry[name]
