r"""Verifiers: which completions are right, which gold answers cannot be compared, and copies by the settings."""

import copy
import os
import pickle
import sys
from dataclasses import asdict

import pytest

from apportion.verifiers import Exact, Math
from tests.cases import lines

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def math():
    with Math() as math:
        yield math


VERDICTS = r"""
    It is \boxed{0.5}.       => \frac{1}{2} => 1
    It is \boxed{x = 3}.     => 3           => 1
    Answer: 1,000            => 1000        => 1
    Answer: 142              => 142.0       => 1
    It is \boxed{\{1,2\}}.   => 2, 1        => 1
    It is \boxed{0.2}.       => \frac{1}{2} => 0
    It is 0.5                => \frac{1}{2} => 0
    <think>It is \boxed{0.5}. => \frac{1}{2} => 0
                             => 1           => 0
"""


def test_mathematics_decides(math):
    for text, gold, verdict in lines(VERDICTS):
        assert math.verdict(text, gold) == float(verdict), text


GOOD = ["7", r"2\sqrt{3}", "no solution", "x < 3", "(1, 2]"]
BAD = [None, " ", r"\frac{1}{", "((((", "$$", "word " * 300]


def test_gold_that_cannot_be_read_has_no_verdict_and_other_gold_can_be_reached(math):
    for gold in GOOD:
        assert math.verdict(rf"So it is $\boxed{{{gold}}}$.", gold) == 1.0
    for gold in BAD:
        assert math.verdict(rf"So it is $\boxed{{{gold}}}$.", gold) is None
    assert Exact().verdict("Answer: 1", None) is Exact().verdict("Answer: 1", "  ") is None


def test_the_best_of_several_right_answers_counts(math):
    for text, golds, verdict in (
        (r"\boxed{2}", ["1", "2"], 1.0),
        (r"\boxed{3}", ["1", "2"], 0.0),
        (r"\boxed{3}", [None, "3"], 1.0),
        (r"\boxed{3}", [None], None),
    ):
        assert math.best_verdict(text, golds) == verdict


def test_texts_are_compared_by_the_extractor_that_is_named():
    verdicts = [Exact().verdict(rf"\boxed{{ {answer}}}", "1/2") for answer in ("1/2", "0.5", "")]
    assert verdicts == [1.0, 0.0, 0.0]
    both = "Answer: 1\n\n" + r"\boxed{2}"
    assert [Exact(extract=how).verdict(both, "1") for how in ("boxed", "answer_line")] == [0.0, 1.0]
    assert Exact(extract="choice").verdict(r"\boxed{\text{C}}", "C") == 1.0
    for kind in (Exact, Math):
        with pytest.raises(ValueError, match="extract must be known, got 'box'; did you mean 'boxed'"):
            kind(extract="box")


def test_a_closed_verifier_ends_its_process_and_starts_another_when_needed():
    math = Math()
    assert math.verdict(r"\boxed{x + x}", "2x") == 1.0
    pid = math._equivalence._quick.process.pid
    assert pid is not None
    math.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    math.close()
    assert math.verdict(r"\boxed{0.25}", r"\frac14") == 1.0
    math.close()


def test_a_wrong_timeout_and_a_missing_package_are_refused_at_construction(monkeypatch):
    with pytest.raises(ValueError, match="timeout_seconds must be positive and finite, got 0"):
        Math(timeout_seconds=0)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ImportError, match="needs math-verify"):
        Math()


@pytest.mark.parametrize("kind", [Math, Exact])
def test_copies_keep_only_the_settings(kind):
    with kind() as verifier:
        assert verifier.verdict(r"It is \boxed{7}.", "7") == 1.0
        for twin in (copy.deepcopy(verifier), pickle.loads(pickle.dumps(verifier))):
            assert twin == verifier and hash(twin) == hash(verifier) and asdict(twin) == asdict(verifier)
            assert twin.verdict(r"It is \boxed{7}.", "7") == 1.0
            twin.close()
