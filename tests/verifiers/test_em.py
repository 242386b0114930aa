from __future__ import annotations

import pytest

from apportion.verifiers import EM


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("The River Seine", "river seine.", 1.0),
        (r"\text{Seine}", "Seine", 1.0),
        (r"\textbf{Seine}, France", "Seine France", 1.0),
        ("U.S.A.", "USA", 1.0),
        ("River Seine", "Seine", 0.0),
        ("A", "The", 0.0),
        ("1.5", "15", 1.0),  # so it is in SQuAD's evaluation
    ],
)
def test_words_are_compared_as_squad_does(answer: str, gold: str, verdict: float) -> None:
    assert EM().verdict(rf"So it is \boxed{{{answer}}}.", gold) == verdict


def test_any_alias_is_right_and_no_answer_is_wrong() -> None:
    em = EM(extract="boxed")
    assert em.best_verdict(r"\boxed{River Seine}", ["Seine", "River Seine"]) == 1.0
    assert em.best_verdict(r"\boxed{Rhine}", ["Seine", "River Seine"]) == 0.0
    assert em.best_verdict("It is the Seine", ["Seine"]) == 0.0
    assert em.best_verdict(r"\boxed{Rhine}", [None, "Rhine"]) == 1.0
    assert em.best_verdict(r"\boxed{Rhine}", [None]) is None
