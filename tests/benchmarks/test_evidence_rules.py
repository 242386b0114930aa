"""Tests of the rules of the verdicts: symmetric, with power, and steady when seeds are added."""

import pytest

from benchmarks.evidence.measures import at, less
from benchmarks.evidence.registry import claims
from benchmarks.evidence.rules import Effect, Kind, Verdict, instances, share, verdict

ABOVE, BELOW = (Verdict.HOLDS, Verdict.PART), (Verdict.FAILS, Verdict.FAILS_PART)
OPPOSITE = {
    Verdict.HOLDS: Verdict.FAILS,
    Verdict.PART: Verdict.FAILS_PART,
    Verdict.CONDITIONS: Verdict.CONDITIONS,
    Verdict.OPEN: Verdict.OPEN,
}


def effect(mean, half=0.1, **settings):
    return Effect("one", mean, mean - half, mean + half, **({"above": 0.0} | settings))


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((1, 1), Verdict.HOLDS),
        ((1, 0), Verdict.PART),
        ((1, -1), Verdict.CONDITIONS),
        ((1, 0, -1), Verdict.CONDITIONS),
        ((0, 0), Verdict.OPEN),
    ],
)
def test_turning_every_figure_round_turns_the_verdict_round(means, expected):
    assert verdict([effect(mean) for mean in means]) is expected
    assert verdict([effect(-mean) for mean in means]) is OPPOSITE[expected]


def test_a_central_claim_needs_ten_seeds_whichever_way_it_goes():
    for mean in (1.0, -1.0):
        assert verdict([effect(mean, seeds=9)], central=True) is Verdict.OPEN
        assert verdict([effect(mean, seeds=10)], central=True) is not Verdict.OPEN


def test_one_counterexample_refutes_a_theorem_and_few_instances_tell_nothing():
    assert [instances("t", *each).told() for each in ((0, 58), (0, 59), (1, 10_000))] == [0, 1, -1]
    assert (0.95**59 < 0.05) and (0.95**58 > 0.05)
    assert share("s", 14, 36, below=0.1).told() == -1 and share("s", 3, 24, below=0.1).told() == 0


def test_every_row_has_what_tells_and_every_reading_its_sentence():
    for row in claims():
        assert row.tells and bool(row.quote) == (row.kind is Kind.READING), row.id
        texts = (row.place, row.claim, row.printed)
        assert all(text.strip() and "\n" not in text and "|" not in text for text in texts)


def test_differences_are_paired_and_a_start_is_one_figure_for_all_seeds():
    m = {"a.x": {"pass_at": [{"8": 0.5}, {"8": 0.7}]}, "a.y": {"pass_at": {"8": 0.1}}, "a.z": {"area": [0.4, 0.5]}}
    (found,) = less(m, "K", "a.x", "a.y", "pass_at/8")
    assert found.mean == pytest.approx(0.5) and found.seeds == 2
    assert at(m, "a.z: area") == [0.4, 0.5]
    more = m | {"a.w": {"area": [0.1, 0.2, 9.0]}}  # a third seed, which only one of them has
    for mine, control, gap in (("a.z", "a.w", 0.3), ("a.w", "a.z", -0.3)):
        (found,) = less(more, "area", mine, f"{control}: area")
        assert found.mean == pytest.approx(gap) and found.seeds == 2
