from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest

from apportion.checks import check_integer, check_numbers, encodable, integer_array, make_named, number_array
from tests.cases import check_refused


def test_integers_of_python_and_numpy_are_accepted_and_other_values_refused():
    for value in (3, np.int8(3), np.uint64(3)):
        assert check_integer("low", value, 1) == 3 and type(check_integer("low", value)) is int
    wrong = ["3", 3.0, True, np.True_, None, float("nan"), 0, 2**63, np.array([3])]
    told = "low must .*, got .*; .*"
    check_refused(ValueError, lambda value: check_integer("low", value, 1), [(value, told) for value in wrong])


def test_fields_of_other_types_are_left_to_their_class():
    @dataclass
    class Settings:
        rate: float = 0.5
        least: int | Literal["auto"] = "auto"
        weights: tuple[float, ...] = (0.5, 0.5)
        seconds: dict[str, float] = field(default_factory=dict)
        seeds: int | Sequence[int] = (1, 2)

        def __post_init__(self):
            check_numbers(self)

    assert Settings(least=3) and Settings()
    check_refused(
        ValueError,
        lambda name: Settings(**{name: "4x"}) if name == "rate" else Settings(**{name: 2.5}),
        [("rate", "rate must be a number, got '4x'; .*"), ("least", "least must be an integer, got 2.5; .*")],
    )


def test_what_is_no_array_of_numbers_is_refused():
    wrong = ["12", ["1"], [[1], [1, 2]], {"a": 1}, [1j]]
    told = "gains must be numbers"
    check_refused(ValueError, lambda values: number_array("gains", values), [(values, told) for values in wrong])
    assert np.isnan(number_array("gains", None))  # as numpy has it: a check of NaN or of the shape follows


def test_large_integers_keep_their_digits():
    assert integer_array("counts", [2**60 + 1]).tolist() == [2**60 + 1]
    with pytest.raises(ValueError, match="counts must be integers"):
        integer_array("counts", [2.0**63])


def test_lone_surrogates_become_question_marks():
    assert encodable("a\ud800b") == "a?b" and encodable("ä漢") == "ä漢"


def test_an_unknown_name_is_refused_with_the_known_ones():
    assert make_named("rule", "list", {"list": list, "dict": dict}) == []
    with pytest.raises(ValueError, match="rule must be known, got 'lst'; did you mean 'list'"):
        make_named("rule", "lst", {"list": list, "dict": dict})
