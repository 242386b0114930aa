import numpy as np
import pytest

from apportion.checks import check_integer, encodable, integer_array, number_array


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_integers_of_python_and_numpy_are_accepted(value):
    assert check_integer("low", value, 1) == 3 and type(check_integer("low", value)) is int


@pytest.mark.parametrize("value", ["3", 3.0, True, np.True_, None, float("nan"), 0, 2**63, np.array([3])])
def test_other_values_are_refused_with_name_value_and_remedy(value):
    with pytest.raises(ValueError, match=r"low must .*, got .*; .*"):
        check_integer("low", value, 1)


@pytest.mark.parametrize("values", ["12", ["1"], [[1], [1, 2]], {"a": 1}, [1j], None])
def test_what_is_no_array_of_numbers_is_refused(values):
    if values is None:
        assert np.isnan(number_array("gains", values))  # as numpy has it: a check of NaN or of the shape follows
        return
    with pytest.raises(ValueError, match="gains must be numbers"):
        number_array("gains", values)


def test_large_integers_keep_their_digits():
    assert integer_array("counts", [2**60 + 1]).tolist() == [2**60 + 1]
    with pytest.raises(ValueError, match="counts must be integers"):
        integer_array("counts", [2.0**63])


def test_lone_surrogates_become_question_marks():
    assert encodable("a\ud800b") == "a?b" and encodable("ä漢") == "ä漢"
