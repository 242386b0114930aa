"""The stopping rules by name."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

from apportion.stopping.adaptive_consistency import AdaptiveConsistencyBeta, AdaptiveConsistencyDirichlet
from apportion.stopping.base import Rule
from apportion.stopping.curtailment import Curtailment
from apportion.stopping.esc import ESC
from apportion.stopping.fixed import Fixed
from apportion.stopping.optpo import OptPO
from apportion.stopping.p_value import PValue
from apportion.stopping.posterior_predictive import PosteriorPredictive
from apportion.stopping.sprt import MSPRT, SPRT

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Fixed,
        OptPO,
        AdaptiveConsistencyBeta,
        AdaptiveConsistencyDirichlet,
        ESC,
        SPRT,
        MSPRT,
        PValue,
        Curtailment,
        PosteriorPredictive,
    )
}
"""Every rule by name; a new one adds its line here."""


def make_rule(rule: str | Rule, **settings: Any) -> Rule:
    """The rule with this name and these settings; a rule is returned as it is.

    >>> make_rule("optpo", min_samples=32).min_samples
    32
    >>> make_rule("opt")
    Traceback (most recent call last):
    ValueError: rule must be one of fixed, optpo, ..., got 'opt'
    """
    if isinstance(rule, Rule):
        if settings:
            raise ValueError(
                f"settings belong to a rule given by name, got {', '.join(settings)}; set them on the rule"
            )
        return rule
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    known = [field.name for field in fields(RULES[rule])]  # type: ignore[arg-type]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"{rule} has no setting {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    hints = get_type_hints(RULES[rule])
    for key, value in settings.items():
        _check_number(key, value, {hints[key], *get_args(hints[key])})
    return RULES[rule](**settings)


def _check_number(name: str, value: Any, kinds: set[Any]) -> None:
    """Raises ValueError where a number is wanted, whole or any, and ``value`` is none."""
    if (value is None and NoneType in kinds) or not kinds & {int, float}:
        return
    wanted, noun = (Real, "a number") if float in kinds else (Integral, "an integer")
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} must be {noun}, got {value!r}; correct it")
