"""Rules to simulate, written as a short text: an allocator, its predictor, and a selection with its own predictor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from apportion.allocators import ALLOCATORS, Allocator, Uniform
from apportion.checks import choices
from apportion.predictors import PREDICTORS, EmpiricalBayes, Predictor
from apportion.selection import SELECTORS, Selector, ShuffledEpochs, check_selector
from apportion.simulation.population import Population, place_of
from apportion.types import Batch, Belief, Floats, Needs, Prompt
from apportion.untrusted import shown

ORACLE, EMBEDDED = "oracle", "embeddings"
KNOWN_STRENGTH = 1e6
"""Rollouts that the oracle's belief is worth."""

_FORM = re.compile(r"(\w+)(?::(\w+))?(?:\+(\w+)(?::(\w+))?)?")


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

    ``settings`` are as ``read_rule`` takes them. Raises ValueError as it does, and for parts that do not fit.

    >>> rule = make_rule("vip:counts+mixed", Population(prompts=8), settings={"low": 4})
    >>> rule.allocator.low, rule.allocator.predictor.name, rule.selector.name
    (4, 'counts', 'mixed')
    """
    parts = read_rule(text, settings, lambda name: make_predictor(name, population))
    try:
        allocator = (parts[0] or Uniform()).with_budget(rollouts_per_prompt)
    except ValueError as error:
        raise ValueError(f"{text} cannot be simulated with {rollouts_per_prompt} rollouts a prompt: {error}") from error
    selector = parts[1] or ShuffledEpochs()
    check_selector(selector, allocator.needs)
    made = (getattr(allocator, "predictor", None), getattr(selector, "predictor", None))
    return SimulatedRule(text, allocator, selector, tuple(each for each in made if isinstance(each, Oracle)))


def read_rule(
    text: str,
    settings: Mapping[str, Any] | None,
    predictor: Callable[[str], Predictor],
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Allocator | None, Selector | None]:
    """Return the allocator and the selection of ``ALLOCATOR[:PREDICTOR][+SELECTION[:PREDICTOR]]`` or of a selection.

    ``settings`` are those of the allocator. Its table ``selection`` has those of the selection, which may be there
    directly if the rule has no allocator. Its ``name`` is the rule, if ``text`` is a name of the user's.
    ``predictor`` makes one by its name. ``defaults`` are settings of selections that have them.

    Raises ValueError for another text, an unknown name or setting, or a predictor for a part that takes none.
    """
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
    name, own, selection, reader = found.groups()

    def part(kind: Any, given: Mapping[str, Any], believes: str | None, where: str) -> Any:
        from apportion.config import build  # noqa: PLC0415 - pydantic is slow to import

        known = {each.name for each in fields(kind) if each.init}
        if believes and "predictor" not in known:
            raise ValueError(f"{kind.name} takes no predictor, got {shown(believes)}; leave it out")
        usual = {key: value for key, value in (defaults or {}).items() if key in known and kind.name in SELECTORS}
        made = build(kind, {**usual, **given}, where)
        return replace(made, predictor=predictor(believes)) if believes else made

    if selection is None and _named({**ALLOCATORS, **SELECTORS}, name, "a rule") is SELECTORS.get(name):
        return None, part(SELECTORS[name], {**table, **chosen}, own, text)
    allocator = part(_named(ALLOCATORS, name, "an allocator"), table, own, text)
    if selection is None:
        return allocator, None
    return allocator, part(_named(SELECTORS, selection, "a selection"), chosen, reader, f"{text}.selection")


def make_predictor(name: str, population: Population) -> Predictor:
    """Return the predictor ``name``, on the population's embeddings if it needs embeddings."""
    if name == ORACLE:
        return Oracle()
    if name == EMBEDDED:
        return EmpiricalBayes(population.embedder())
    kind = _named(PREDICTORS, name, "a predictor")
    usual = {each.name: each.default for each in fields(kind)}
    if "predictor" in usual:
        return kind(EmpiricalBayes())
    return kind() if usual.get("embedder") is None else kind(embedder=population.embedder())


def _named(registry: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in registry:
        raise ValueError(f"{what} must have a known name, got {shown(name)}; {choices(name, registry)}")
    return registry[name]
