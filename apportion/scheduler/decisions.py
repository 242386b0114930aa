"""The decisions of a run that trainers have in common: how many rollouts, which prompts, what baseline."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial, reduce
from operator import or_
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages import (
    ESTIMATORS,
    OutcomeGate,
    Reduction,
    Weighting,
    advantages_of,
    check_baseline,
    check_weighting,
    default_weighting,
    gated,
    loss_weights,
    rollout_needs,
)
from apportion.allocators import ALLOCATORS, Allocator, check_rollout
from apportion.baselines import BASELINES, Baseline
from apportion.checks import make_named
from apportion.predictors.score_norms import score_norm
from apportion.presets import PRESETS, Preset, preset_of
from apportion.scheduler.saved_settings import check_same_settings, settings_of
from apportion.scheduler.shaping import REMEDY, ShapingAlarm, shaping_of_groups
from apportion.selection import SELECTORS, Selector, check_selector
from apportion.types import Batch, Counts, Floats, Group, Needs, Prompt, Rollout
from apportion.untrusted import shown

PARTS: tuple[tuple[str, Any, Mapping[str, Any]], ...] = (
    ("allocator", Allocator, ALLOCATORS),
    ("baseline", Baseline, BASELINES),
    ("selection", Selector, SELECTORS),
)
"""The parts of an allocation: the setting, its type, and the registry of its names."""

UNDECIDED: Any = None
"""The default of an allocator that a preset may decide."""

EQUAL_PROMPTS = 500
"""Number of prompts with equal counts, from the start of a run, after which a warning is logged."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunDecisions:
    """The decisions of a run in any engine: how many rollouts, which prompts, which baseline, which weights.

    The name of an allocator, a baseline, a selection or a preset stands for one with its defaults, as in TOML and verl.
    A preset makes the decisions of a method, and is None afterwards; see ``take_preset``. Raises TypeError for one of
    another type, and ValueError for what does not fit together.

    Under an ``outcome_gate`` groups of equal outcomes teach nothing beside their outcome, see ``gated``.
    """

    preset: Preset | None = None
    allocator: Allocator = UNDECIDED
    weighting: Weighting | None = None
    baseline: Baseline | None = None
    selection: Selector | None = None
    outcome_gate: OutcomeGate = False

    _equal: ClassVar[tuple[int, int] | None] = (0, 0)
    """Number of prompts so far, all with equal counts, and that count; None after an unequal count or the warning."""
    _alarm: ClassVar[ShapingAlarm | None] = None

    def __post_init__(self) -> None:
        take_preset(self)
        if self.allocator is None:
            raise ValueError(
                "allocator must be given, or a preset, which has one, got neither; name one, such as the preset "
                "fixed_baseline"
            )
        for name, kind, registry in PARTS:
            given = getattr(self, name)
            if isinstance(given, str):
                given = make_named(name, given, registry)
                object.__setattr__(self, name, given)
            if given is not None and not isinstance(given, kind):
                article = "an" if name == "allocator" else "a"
                raise TypeError(
                    f"{name} must be {article} {kind.__name__} or the name of one, got {shown(given)}; the names are "
                    f"{', '.join(registry)}"
                )
        check_weighting(self.weighting)
        if self.outcome_gate not in (False, True, "order"):
            raise ValueError(f"outcome_gate must be False, True or 'order', got {self.outcome_gate!r}; check it")
        if self.outcome_gate and self.label_free:
            raise ValueError(
                f"outcome_gate must be left out with {self.allocator.name}, whose votes are the whole reward, got "
                f"{self.outcome_gate!r}; leave it out"
            )
        if self.selection is not None:
            check_selector(self.selection, self.allocator.needs)

    @property
    def trained_estimator(self) -> str | None:
        """The estimator of the advantages that are trained on; None if it is the trainer's own formula."""
        return None if self.baseline is None else "reinforce"  # or spo, which compares as widely

    @property
    def label_free(self) -> bool:
        """Whether rewards come from votes."""
        return not self.allocator.needs.labels

    @property
    def idle(self) -> tuple[str, ...]:
        """The settings of votes that have no effect, because rewards do not come from votes."""
        return () if self.label_free else ("extract", "equivalence")

    @property
    def parts(self) -> dict[str, Allocator | Baseline | Selector | None]:
        """The allocator, the baseline and the selection by name; None for one that is left out."""
        return {"allocator": self.allocator, "baseline": self.baseline, "selection": self.selection}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of all parts by ``settings_of``, as a checkpoint has them; None for one that is left out.

        Beside a baseline they say whether there is a gate, because a baseline learns outcomes under it.
        """
        gate = {} if self.baseline is None else {"outcome_gate": bool(self.outcome_gate)}
        return dict.fromkeys(self.parts) | settings_of(self.parts) | gate

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Give the allocator and the baseline all prompts, so that no step waits for embeddings."""
        self.allocator.prepare(prompts)
        if self.baseline is not None:
            self.baseline.prepare(prompts)

    def state_dicts(self) -> dict[str, Any]:
        """Return the state of each part by its name; None for one that is left out."""
        return {name: None if part is None else part.state_dict() for name, part in self.parts.items()}

    def load_state_dicts(self, states: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Restore what ``state_dicts`` returned, of a run with these ``settings``.

        Raises OtherSettingsError for other parts or settings, and ValueError for another kind of state.
        """
        check_same_settings(settings, self.settings)
        for name, part in self.parts.items():
            if part is not None:
                part.load_state_dict(states[name])

    def check_arrived(self, prompt: Prompt, *rollouts: Rollout) -> None:
        """Raise ValueError if one of ``rollouts`` lacks what a part needs, such as a verdict or a score norm."""
        for part in self._readers:
            for rollout in rollouts:
                check_rollout(part, prompt, rollout)
        if self.outcome_gate:
            gated(Group(prompt, rollouts), self.outcome_gate)

    @cached_property
    def _readers(self) -> list[Any]:
        """The parts that need to know more of a rollout than its reward."""
        return [part for part in self.parts.values() if part is not None and part.needs != Needs()]

    def weighted(self, groups: Sequence[Group], baseline: ArrayLike | None = None) -> Floats | None:
        """Return None: the engine computes the advantages."""

    def observe(self, batch: Batch) -> None:
        """Let the allocator, the baseline and the selection learn from a finished batch."""
        for learn in self.lessons(batch):
            learn()

    def lessons(self, batch: Batch) -> list[Callable[[], None]]:
        """Return one call per part that learns. Together they are ``observe``."""
        steps: list[Callable[[], None]] = [
            partial(self.allocator.observe, batch),
            partial(self._compare, batch),
            partial(self.look, batch.rollouts),
        ]
        if self.baseline is not None:
            steps.append(partial(self.baseline.update, self.for_baseline(batch)))
        if self.selection is not None:
            steps.append(partial(self.selection.observe, batch.sampled))
        return steps

    def for_baseline(self, batch: Batch) -> Batch:
        """Return the batch from which the baseline learns. Under a gate its rewards are outcomes."""
        return batch.sampled.judged if self.outcome_gate else batch.sampled

    def look(self, groups: Sequence[Sequence[Rollout]]) -> None:
        """Log a warning once the shaping of the rewards makes the run sick. ``groups`` are those of the next update.

        A single group is no update, and a gate keeps phantom groups from training.
        """
        if self.outcome_gate or len(groups) < 2:
            return
        if self._alarm is None:
            object.__setattr__(self, "_alarm", ShapingAlarm())
        assert self._alarm is not None
        if said := self._alarm.add(shaping_of_groups(groups, self.trained_estimator)):
            logger.warning("SICK (shaping): %s. %s", said, REMEDY)

    def _compare(self, batch: Batch) -> None:
        if self.allocator.adapts and self._equal is not None and batch.prompts:
            object.__setattr__(self, "_equal", self._equal_after(*self._equal, batch.asked))

    def _equal_after(self, prompts: int, each: int, asked: Counts) -> tuple[int, int] | None:
        """Return the new value of ``_equal`` after a batch with these counts.

        Warn once enough prompts had equal counts.
        """
        prompts, each = prompts + len(asked), each if prompts else int(asked[0])
        if (asked != each).any():
            return None
        if prompts < EQUAL_PROMPTS:
            return prompts, each
        logger.warning(
            "%s gave each of the first %d prompts %d rollouts; raise its budget, widen its bounds, or put more prompts "
            "into a batch, or use uniform; if no prompt has come twice, known success rates or a predictor that reads "
            "texts tell prompts apart",
            self.allocator.name,
            prompts,
            each,
        )
        return None


@dataclass(frozen=True, kw_only=True)
class TrainerAllocation(RunDecisions):
    """The decisions of a run whose advantages are computed in the trainer's process, by an ``estimator``."""

    estimator: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator is not None and self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}; leave it out for the "
                "default"
            )
        check_baseline(self.estimator, self.baseline)

    @property
    def trained_estimator(self) -> str | None:
        return self.estimator

    @property
    def loss_weighting(self) -> Weighting:
        """Which unit (prompt, rollout or token) has equal weight in the loss."""
        return self.weighting or default_weighting(self.trained_estimator)

    @property
    def needs(self) -> Needs:
        """What the allocator, the estimator, the baseline and the selection need to know of each rollout."""
        parts = (part.needs for part in self.parts.values() if part is not None)
        own = rollout_needs(self.trained_estimator) | Needs(binary=bool(self.outcome_gate))
        return reduce(or_, parts, own)

    def check_arrived(self, prompt: Prompt, *rollouts: Rollout) -> None:
        """Check as ``RunDecisions`` does, and for what the estimator needs."""
        super().check_arrived(prompt, *rollouts)
        own = self.trained_estimator
        if own is not None and rollout_needs(own).score_norms:
            for rollout in rollouts:
                if rollout.reward is not None:
                    score_norm(rollout, prompt, own)

    def advantages(self, groups: Sequence[Group], baseline: ArrayLike | None = None) -> Floats:
        """Return the advantages [N] of all rollouts of ``groups`` by the estimator, or by "rloo" if none is named.

        ``baseline`` [groups] has the values before the rollouts, if the baseline has learned from these already.
        """
        if self.baseline is not None:
            for group in groups:
                for rollout in group.rollouts:
                    check_rollout(self.baseline, group.prompt, rollout)
            if baseline is None:
                baseline = self.baseline.predict([group.prompt for group in groups])
        groups = [gated(group, self.outcome_gate) for group in groups]
        return advantages_of(groups, self.trained_estimator or "rloo", baseline=baseline)

    def weighted(self, groups: Sequence[Group], baseline: ArrayLike | None = None) -> Floats:
        """Return the ``advantages`` [N] of all rollouts of ``groups``, times their ``weights``."""
        return self.weights(groups) * self.advantages(groups, baseline) if groups else np.zeros(0)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of ``RunDecisions``, the estimator and the weighting."""
        return super().settings | {"estimator": self.trained_estimator, "weighting": self.loss_weighting}

    def weights(self, groups: Sequence[Group], reduction: Reduction = "sum") -> Floats:
        """Return the weights [N] of all rollouts in the loss, 0 outside it, times those of the selection.

        ``reduction`` is that of the loss over the tokens of a rollout.
        """
        importance = None if self.selection is None else self.selection.weights([group.prompt for group in groups])
        tokens = np.array([rollout.tokens for group in groups for rollout in group.rollouts], np.float64)
        return loss_weights(groups, self.loss_weighting, importance, tokens=tokens, reduction=reduction)


def take_preset(decisions: Any) -> None:
    """Replace the ``preset`` of a frozen dataclass by None, and set the fields of these names to what it decides.

    So decisions by a preset equal those that are spelled out, also in a checkpoint. What the preset leaves open may be
    given beside it. Raises TypeError for another type, ValueError for an unknown name and for a decision made twice.
    """
    preset = decisions.preset
    if preset is None:
        return
    if isinstance(preset, str):
        preset = preset_of(preset)
    if not isinstance(preset, Preset):
        raise TypeError(
            f"preset must be a Preset or the name of one, got {shown(preset)}; the names are {', '.join(PRESETS)}"
        )
    own = {field.name for field in fields(decisions)}
    for name, decided in preset.arguments().items():
        if name not in own:  # the estimator, which is a setting of verl itself
            continue
        if (given := getattr(decisions, name)) is not None:
            has, got = (getattr(each, "name", each) for each in (decided, given))
            raise ValueError(
                f"{name} must be left out beside a preset whose own is {has}, got {shown(got)}; leave out the preset "
                f"or the {name}"
            )
        object.__setattr__(decisions, name, decided)
    object.__setattr__(decisions, "preset", None)


def bill(allocator: Allocator, prompts: int, usual: int | None) -> str:
    """Return in one line what a batch of ``prompts`` prompts costs, compared with the engine's ``usual`` rollouts.

    Logs a warning if it can cost more.

    >>> from apportion import AR3PO, HORA
    >>> bill(HORA(rollouts_per_prompt=8), 4, 32)
    'hora: a batch of 4 prompts samples 32 rollouts in at most 2 rounds, and trains on at most 32 (without it: 32)'
    >>> bill(AR3PO(stages=2, rollouts_per_stage=4), 4, None)
    'ar3po: a batch of 4 prompts samples 16 to 32 rollouts in at most 2 rounds, and trains on at most 32'
    """
    size = allocator.size(prompts)
    if size.asked is None:
        sampled = f"{size.fewest} or more rollouts, as many as its plans ask for,"
    else:
        sampled = f"{size.asked} rollouts" if size.exact else f"{size.fewest} to {size.asked} rollouts"
        if usual is not None and size.asked > usual:
            logger.warning(
                "%s can sample %d rollouts in a batch of %d prompts, %.3g times the %d that are sampled without it; "
                "give it smaller numbers, or a batch fewer prompts",
                allocator.name,
                size.asked,
                prompts,
                size.asked / usual,
                usual,
            )
    rounds = "" if size.rounds is None else " in one round" if size.rounds == 1 else f" in at most {size.rounds} rounds"
    rows = "all of them" if size.kept is None else f"at most {size.kept}"
    fresh = f", with up to {size.fresh} further prompts" if size.fresh else ""
    beside = "" if usual is None else f" (without it: {usual})"
    return (
        f"{allocator.name}: a batch of {prompts} prompts samples {sampled}{rounds}{fresh}, and trains on {rows}{beside}"
    )


def check_draws(allocator: Allocator, prompts: int, distinct: Callable[[int], int]) -> None:
    """Raise ValueError if a data set is too small for the fresh prompts that ``allocator`` may draw beside ``prompts``.

    ``distinct`` returns the number of distinct prompts of the data set, counted up to the number that it is given. So a
    run is refused before its first step, and does not end when its draws run out.
    """
    fresh = allocator.size(prompts).fresh
    if fresh and (found := distinct(prompts + fresh)) < prompts + fresh:
        raise ValueError(
            f"the data set must have {prompts + fresh} distinct prompts, the {prompts} of a generation batch and "
            f"the {fresh} that {allocator.name} may draw beside them, got {found}; give more, let the "
            "allocator draw fewer, or name an id (id_column, allocation.id_key) if different questions share a prompt"
        )


def warn_of_idle(allocation: RunDecisions, prefix: str = "") -> None:
    """Warn of each setting of votes in ``allocation`` that has no effect."""
    for name in allocation.idle:
        if getattr(allocation, name) != getattr(type(allocation), name):
            said = "%s%s has no effect, because %s does not learn from votes; leave it out"
            logger.warning(said, prefix, name, allocation.allocator.name)
