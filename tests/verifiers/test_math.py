import os
import sys

import pytest

from apportion.verifiers import Math

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def math():
    with Math() as math:
        yield math


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (r"It is \boxed{0.5}.", r"\frac{1}{2}", 1.0),
        (r"It is \boxed{x = 3}.", "3", 1.0),
        ("Answer: 1,000", "1000", 1.0),
        (r"It is \boxed{\{1,2\}}.", "2, 1", 1.0),
        (r"It is \boxed{0.2}.", r"\frac{1}{2}", 0.0),
        ("It is 0.5", r"\frac{1}{2}", 0.0),
        (r"<think>It is \boxed{0.5}.", r"\frac{1}{2}", 0.0),
        ("", "1", 0.0),
        (r"It is \boxed{0.5}.", None, None),
    ],
)
def test_mathematics_decides(math, text, gold, verdict):
    assert math.verdict(text, gold) == verdict


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
