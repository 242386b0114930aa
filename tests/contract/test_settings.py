"""Settings of everything that a registry names: what is not the number that the annotation asks for is refused."""

from __future__ import annotations

import warnings
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from apportion.allocators import ALLOCATORS
from apportion.baselines import BASELINES
from apportion.predictors import EMBEDDERS, PREDICTORS, MeanLengths, UniformPrior
from apportion.selection import SELECTORS
from apportion.stopping import RULES

SUBJECTS: dict[str, type] = {
    f"{kind} {name}": cls
    for kind, registry in (
        ("allocator", ALLOCATORS),
        ("predictor", PREDICTORS),
        ("rule", RULES),
        ("baseline", BASELINES),
        ("selector", SELECTORS),
        ("embedder", {name: cls for name, cls in EMBEDDERS.items() if is_dataclass(cls)}),
        ("lengths", {"mean_lengths": MeanLengths}),
    )
    for name, cls in registry.items()
}
REQUIRED: dict[str, dict[str, Any]] = {
    "predictor shuffled": {"predictor": UniformPrior()},
    "lengths mean_lengths": {"initial": 100.0},
    "embedder precomputed": {"embeddings": {"a": [1.0]}},
}
NAN, INF = float("nan"), float("inf")
NO_INTEGER = ("8", 7.5, 8.0, True, NAN, INF, -1, 2**63)
NO_NUMBER = ("x", "0.5", NAN, INF, -INF, True, 1j)
NO_FLAG = ("yes", 1, None)


def kinds_of(cls: type, field: str) -> set[Any]:
    hint = get_type_hints(cls)[field]
    return {hint, *get_args(hint)}


def settings_of(*wanted: type) -> list[tuple[str, str]]:
    """Every subject and field whose annotation names the first of int, float, bool that is in ``wanted``."""
    return [
        (subject, field.name)
        for subject, cls in SUBJECTS.items()
        for field in fields(cls)
        if field.init
        and next((kind for kind in (float, int, bool) if kind in kinds_of(cls, field.name)), None) in wanted
    ]


def build(subject: str, field: str, value: Any) -> Any:
    """Build the subject with one setting. A budget in tokens needs lengths beside it."""
    given = REQUIRED.get(subject, {}) | {field: value}
    if field == "tokens_per_prompt":
        given["lengths"] = MeanLengths(initial=1.0)
    return SUBJECTS[subject](**given)


def assert_refused(subject: str, field: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing may be computed with the value before it is refused
        with pytest.raises(ValueError, match=field) as refusal:
            build(subject, field, value)
    message = str(refusal.value)
    shown = {repr(value), str(value), f"{value:g}" if isinstance(value, (int, float)) else repr(value)}
    assert any(text in message for text in shown), f"{message} does not show {value!r}"
    assert "\n" not in message and "; " in message, f"{message} names no remedy"


@pytest.mark.parametrize("value", NO_INTEGER)
@pytest.mark.parametrize(("subject", "field"), settings_of(int))
def test_what_is_no_integer_is_refused(subject, field, value):
    assert_refused(subject, field, value)


@pytest.mark.parametrize("value", NO_NUMBER)
@pytest.mark.parametrize(("subject", "field"), settings_of(float))
def test_what_is_no_finite_number_is_refused(subject, field, value):
    assert_refused(subject, field, value)


@pytest.mark.parametrize("value", NO_FLAG)
@pytest.mark.parametrize(("subject", "field"), settings_of(bool))
def test_what_is_no_flag_is_refused(subject, field, value):
    if value is None and type(None) in kinds_of(SUBJECTS[subject], field):
        pytest.skip("None is one of its values")
    assert_refused(subject, field, value)


@pytest.mark.parametrize(("subject", "field"), settings_of(int, float, bool))
def test_none_is_refused_unless_the_annotation_says_so(subject, field):
    if type(None) in kinds_of(SUBJECTS[subject], field):
        if field != "tokens_per_prompt":  # lengths go with it
            assert getattr(build(subject, field, None), field) is None
    else:
        assert_refused(subject, field, None)


@pytest.mark.parametrize(("subject", "field"), settings_of(int, float, bool))
def test_numbers_of_numpy_are_accepted(subject, field):
    declared = next(each for each in fields(SUBJECTS[subject]) if each.name == field)
    default = REQUIRED.get(subject, {}).get(field, declared.default)
    if default in (None, MISSING, "free"):
        pytest.skip("it has no number as its default")
    kind = {bool: np.bool_, int: np.int64, float: np.float64}[type(default)]
    assert getattr(build(subject, field, kind(default)), field) == default
