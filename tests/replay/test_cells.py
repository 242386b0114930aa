"""Measures of a replay over several seeds."""

import numpy as np
import pytest

from apportion.replay.cells import MEASURES, Cells


def test_coverage_is_the_expected_number_of_distinct_mixed_prompts_mean_over_seeds():
    """Prompt 0 is met twice by the first seed; prompt 1 once by each."""
    seed, prompt = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    mixed = np.array([0.5, 0.5, 1.0, 0.2])
    places = np.zeros(4, np.int64)
    measures = dict.fromkeys(MEASURES, mixed)
    cells = Cells(seed, places, prompt, places, places, places, measures, measures, np.zeros(1, np.int64), prompts=2)
    assert cells.coverage() == pytest.approx((0.75 + 1.0 + 0.2) / 2) and cells.total("mixed") == pytest.approx(1.1)
