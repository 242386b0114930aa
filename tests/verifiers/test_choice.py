from __future__ import annotations

import pytest

from apportion.verifiers import Choice


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("Answer: (b)", "B", 1.0),
        (r"\boxed{\text{C}}", "(c)", 1.0),
        ("Answer: D", "B", 0.0),
        ("I cannot tell.", "B", 0.0),
        ("Answer: B", None, None),
        ("Answer: B", "a dog", None),
    ],
)
def test_letters_are_compared(text: str, gold: str | None, verdict: float | None) -> None:
    assert Choice().verdict(text, gold) == verdict
