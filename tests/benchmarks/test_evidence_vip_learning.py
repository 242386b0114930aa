"""What the printed figures of VIP's tables say, and the rule of the verdicts on what a policy learns under VIP."""

import pytest

from benchmarks.evidence.claim import Verdict
from benchmarks.evidence.vip_learning import OTHERS, _against_uniform, _better_everywhere
from benchmarks.evidence.vip_printed import TABLE, gains, power


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([1, 1], Verdict.HOLDS),
        ([1, 0], Verdict.CONDITIONS),
        ([1, -1], Verdict.CONDITIONS),
        ([0, -1], Verdict.FAILS),
        ([0, 0], Verdict.OPEN),
    ],
)
def test_better_everywhere_needs_every_interval(signs, verdict):
    assert _better_everywhere(signs) == verdict


def test_the_printed_table_is_read_in_its_order():
    assert TABLE[0, 0, 1, :, 0].tolist() == [[18.29, 3.43, 6.88], [30.55, 9.68, 15.65]]
    assert TABLE[1, 2, 0, 1, 1].tolist() == [10.67, 0.52, 0.05]
    assert (gains("Pass@32").higher, gains("Pass@32").equal, gains("Pass@32").lower) == (20, 1, 3)


def test_the_error_of_a_printed_difference_is_binomial():
    found = power()
    assert found.largest_error == pytest.approx(100 * (0.1829 * 0.8171 / 30 + 0.3055 * 0.6945 / 30) ** 0.5)
    assert found.least_error == pytest.approx(100 * (0.1226 * 0.8774 / 30) ** 0.5)
    assert found.gain == pytest.approx(12.26)


def values(shift):
    """The values of an arm whose metrics are higher by ``shift`` than those of another, with noise between seeds."""
    own = {key: [0.5 + shift + 0.01 * k for k in range(5)] for key in ("mean", "pass_32", "maj_32", "area")}
    others = dict.fromkeys(("belief", "variance"), own["mean"])
    return own | others | {"pass_at": [{"1": mean, "32": mean} for mean in own["mean"]]}


def test_vip_is_compared_with_uniform_in_each_setting():
    measured = {f"controls.uniform_{n}_{e}": values(0.0) for n, e in OTHERS}
    measured |= {f"vip_learning.gp_{n}_{e}": values(0.0) for n, e in OTHERS}
    assert _against_uniform(measured, OTHERS).verdict == Verdict.OPEN
    measured["vip_learning.gp_16_rloo"] = values(0.1)
    found = _against_uniform(measured, OTHERS)
    assert found.verdict == Verdict.CONDITIONS and "above 0 for Pass@32 with 16 under RLOO and Mean@32" in found.why
    measured |= {f"vip_learning.gp_{n}_{e}": values(0.1) for n, e in OTHERS}
    assert _against_uniform(measured, OTHERS).verdict == Verdict.HOLDS
