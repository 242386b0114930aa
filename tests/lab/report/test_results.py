import numpy as np
import pytest
from scipy import stats

from apportion.lab.report.results import SeedInterval


def test_interval_is_students():
    values = [0.1, 0.4, 0.2, 0.7]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    interval = SeedInterval.of(values)
    assert (interval.mean - interval.half_width, interval.mean + interval.half_width) == pytest.approx((low, high))
    assert SeedInterval.of([0.3]).half_width is None
    assert f"{SeedInterval(0.352, 0.0142):.1%}" == "35.2% ± 1.4%" and f"{SeedInterval(0.352, None):.1%}" == "35.2%"
