import os
import sys

import pytest

from apportion.verifiers import Math
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
    It is \boxed{\{1,2\}}.   => 2, 1        => 1
    It is \boxed{0.2}.       => \frac{1}{2} => 0
    It is 0.5                => \frac{1}{2} => 0
    <think>It is \boxed{0.5}. => \frac{1}{2} => 0
                             => 1           => 0
"""


def test_mathematics_decides(math):
    for text, gold, verdict in lines(VERDICTS):
        assert math.verdict(text, gold) == float(verdict), text
    assert math.verdict(r"It is \boxed{0.5}.", None) is None


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
