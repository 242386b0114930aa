"""OptPO against the paper's Sections 3.2 and 4.1, one stream and one sample at a time."""

import math
from collections import Counter
from functools import cache

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from apportion import stopping
from apportion.stopping import vote_gaps


def decide(streams, rule="optpo", **settings):
    return stopping.decide(streams, rule, **settings)


def as_in_the_paper(
    stream,
    max_samples=64,
    min_samples=16,
    alpha=0.05,
    beta=0.05,
    p0_factor=0.6,
    exceedances=5,
    choices=None,
    low_accuracy="continue",
    count_from="start",
):
    """Return samples and answer. Thresholds on the gap are rounded, so that kappa = 3 with a gap of 2 reaches A = 9."""
    a, b = (1 - beta) / alpha, beta / (1 - alpha)
    stream = stream[:max_samples]

    @cache
    def ranked(t):
        votes = Counter(answer for answer in stream[:t] if answer is not None)
        return [*votes.most_common(), (None, 0), (None, 0)][:2], len(votes)

    @cache
    def exceeded(t, p0):
        """Return whether the leader's and the runner-up's boundary are exceeded after t samples."""
        ((_, v_first), (_, v_second)), distinct = ranked(t)
        m = max(distinct, 2) if choices is None else choices
        kappa, gap = p0 * (m - 1) / (1 - p0), v_first - v_second
        if kappa == 0:
            return False, gap > 0  # Lambda is 0 to the power of the gap
        if abs(math.log(kappa)) <= 1e-12:
            return False, False
        delta_a = math.ceil(round(math.log(a) / math.log(kappa), 9))
        delta_b = math.ceil(round(math.log(b) / math.log(kappa), 9))
        return kappa > 1 and gap >= delta_a, kappa < 1 and gap >= delta_b

    for t in range(min_samples, len(stream) + 1):
        p0 = p0_factor * ranked(min_samples)[0][0][1] / min_samples
        counted = [exceeded(u, p0) for u in range(1 if count_from == "start" else min_samples, t + 1)]
        for_leader, for_runner_up = (side[-1] and sum(side) >= exceedances for side in zip(*counted, strict=True))
        (first, _), (second, _) = ranked(t)[0]
        if for_leader:
            return t, first
        if low_accuracy == "literal" and for_runner_up:
            return t, first if second is None else second
    return len(stream), ranked(len(stream))[0][0][0]


answer_lists = st.lists(st.sampled_from(["a"] * 4 + ["b", "b", "c", "d", "e", None]), min_size=1, max_size=64)
setting_dicts = st.fixed_dictionaries(
    {
        "min_samples": st.integers(1, 24),
        "alpha": st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.4]),
        "beta": st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.4]),
        "p0_factor": st.sampled_from([0.2, 0.5, 0.6, 0.75, 0.95]),
        "exceedances": st.integers(1, 6),
        "choices": st.none() | st.integers(2, 12),
        "low_accuracy": st.sampled_from(["continue", "literal"]),
        "count_from": st.sampled_from(["start", "min_samples"]),
    }
)


def case(stream, max_samples=64, **chosen):
    return example([list(stream)], max_samples, chosen)


@settings(max_examples=100)
@case("a" * 8 + "b" * 7 + "a" * 9, 24, min_samples=15, choices=20)  # five samples exceed A before N, the one at N not
@case([None] * 16 + ["a"] * 48, min_samples=16)  # kappa is 0
@case([None] * 16 + ["a"] * 48, min_samples=16, low_accuracy="literal")
@case("a" * 10 + "b" * 2 + "a" * 52, min_samples=12)  # kappa is 1, because p0 = 0.6 * 10 / 12 and m = 2
@case("a" * 10 + "b" * 2 + "a" * 52, min_samples=12, low_accuracy="literal")
# p0 = 0.6 * 5 / 10 and m = 8 make kappa = 3; a gap of 2 makes Lambda = 9, which is A; in logarithms it is not
@case("abababaccabc", 12, min_samples=10, choices=8, alpha=0.1, beta=0.1, exceedances=1)
@given(st.lists(answer_lists, min_size=1, max_size=4), st.integers(1, 64), setting_dicts)
def test_samples_and_answer_equal_those_of_the_paper(streams, max_samples, chosen):
    assume(chosen["min_samples"] <= max_samples)
    decisions = decide(streams, rule="optpo", max_samples=max_samples, **chosen)
    expected = [as_in_the_paper(stream, max_samples, **chosen) for stream in streams]
    assert list(zip(decisions.samples, decisions.answer, strict=True)) == expected


def test_both_boundaries_in_one_wave_select_the_leader():
    """Junk answers raise kappa from below 1 to above 1. If both boundaries were exceeded, the later one counts."""
    stream = ["a"] * 12 + ["b"] * 4 + ["a"] * 16 + list("cdefghij") + ["a"] * 24
    each = decide(stream, low_accuracy="literal")
    assert each.answer == "b"
    assert decide(stream, low_accuracy="literal", wave=64).answer == "a"


@pytest.mark.parametrize(("p0", "choices"), [(0.6, 4), (0.3, 5), (0.9, 2), (0.51, 2)])
def test_the_gaps_decide_as_the_bayes_factor_does(p0, choices):
    leader, runner_up = vote_gaps(p0, choices)
    kappa = p0 * (choices - 1) / (1 - p0)
    assert kappa**leader >= 19 * (1 - 1e-9) and kappa ** (leader - 1) < 19
    assert kappa**runner_up <= 1 / 19 * (1 + 1e-9) and kappa ** (runner_up + 1) > 1 / 19
