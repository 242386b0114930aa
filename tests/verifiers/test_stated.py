from apportion.verifiers import EM, Choice, Exact
from tests.cases import lines

LETTERS = r"""
    Answer: (b)       => B   => 1
    \boxed{\text{C}}  => (c) => 1
    Answer: D         => B   => 0
    I cannot tell.    => B   => 0
"""

WORDS = r"""
    The River Seine          => river seine. => 1
    \text{Seine}             => Seine        => 1
    \textbf{Seine}, France   => Seine France => 1
    U.S.A.                   => USA          => 1
    River Seine              => Seine        => 0
    A                        => The          => 0
    1.5                      => 15           => 1
"""
"""The last is so in SQuAD's evaluation."""


def test_letters_are_compared():
    for text, gold, verdict in lines(LETTERS):
        assert Choice().verdict(text, gold) == float(verdict), text
    assert Choice().verdict("Answer: B", None) is Choice().verdict("Answer: B", "a dog") is None


def test_words_are_compared_as_squad_does():
    for answer, gold, verdict in lines(WORDS):
        assert EM().verdict(rf"So it is \boxed{{{answer}}}.", gold) == float(verdict), answer


def test_any_alias_is_right_and_no_answer_is_wrong():
    em = EM(extract="boxed")
    for text, golds, verdict in (
        (r"\boxed{River Seine}", ["Seine", "River Seine"], 1.0),
        (r"\boxed{Rhine}", ["Seine", "River Seine"], 0.0),
        ("It is the Seine", ["Seine"], 0.0),
        (r"\boxed{Rhine}", [None, "Rhine"], 1.0),
        (r"\boxed{Rhine}", [None], None),
    ):
        assert em.best_verdict(text, golds) == verdict


def test_texts_are_compared():
    verdicts = [Exact().verdict(rf"\boxed{{ {answer}}}", "1/2") for answer in ("1/2", "0.5", "")]
    assert verdicts == [1.0, 0.0, 0.0] and Exact().verdict(r"\boxed{1}", None) is None


def test_an_extractor_reads_only_its_own_form_of_answer():
    both = "Answer: 1\n\n" + r"\boxed{2}"
    assert [Exact(extract=how).verdict(both, "1") for how in ("boxed", "answer_line")] == [0.0, 1.0]
    assert Exact().with_extractor("answer_line").verdict(both, "1") == 1.0
    assert Exact(extract="boxed").with_extractor("answer_line").verdict(both, "1") == 0.0
