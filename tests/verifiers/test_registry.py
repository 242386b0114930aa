"""Every verifier by its name: it checks gold, reads answers, is copied by its settings."""

import copy
import pickle
from dataclasses import asdict

import pytest

from apportion.questions import Question
from apportion.rows import TableError
from apportion.verifiers import VERIFIERS, Exact, Verifier

GOOD = {
    "math": ["7", r"2\sqrt{3}", "no solution", "x < 3", "(1, 2]"],
    "exact": ["7", "((("],
    "em": ["7", "The Seine", "A"],
    "choice": ["A", "(j)", "b."],
}
BAD = {
    "math": [None, " ", r"\frac{1}{", "((((", "$$", "word " * 300],
    "exact": [None, "  "],
    "em": [None, "  "],
    "choice": [None, "", "K", "A dog", "7"],
}


def make_verifier(name, folder=None):
    if name == "math":
        pytest.importorskip("math_verify")
    if name != "function":
        return VERIFIERS[name]()
    assert folder is not None
    (folder / "score.py").write_text("def right(text, gold):\n    return gold in text\n")
    return VERIFIERS[name](f"{folder}/score.py:right")


def make_questions(*golds):
    return [Question(f"q{n}", "What?", gold) for n, gold in enumerate(golds)]


@pytest.mark.parametrize("name", GOOD)
def test_a_check_names_exactly_the_gold_answers_that_cannot_be_used(name):
    with make_verifier(name) as verifier:
        verifier.check(make_questions(*GOOD[name]))
        for gold in BAD[name]:
            with pytest.raises(TableError, match=r"each gold answer must be .* for 'q1'; ") as caught:
                verifier.check(make_questions(GOOD[name][0], gold))
            assert "\n" not in str(caught.value) and repr(gold) in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_gold_that_passes_the_check_can_be_reached(name):
    with make_verifier(name) as verifier:
        for gold in set(GOOD[name]) - {"((("}:
            text = rf"So it is $\boxed{{{gold}}}$."
            assert verifier.verdict(text, gold) == 1.0 and verifier.answer(text)
        assert verifier.answer("I cannot tell") is None


def test_only_the_first_offenders_are_named():
    with pytest.raises(TableError, match="got None for 'q0', None for 'q1', None for 'q2' and 4 more; add it"):
        Exact().check(make_questions(*[None] * 7))


@pytest.mark.parametrize("name", ["math", "exact", "em", "function"])
def test_copies_keep_only_the_settings(name, tmp_path):
    with make_verifier(name, tmp_path) as verifier:
        assert verifier.verdict(r"It is \boxed{7}.", "7") == 1.0
        for twin in (copy.deepcopy(verifier), pickle.loads(pickle.dumps(verifier))):
            assert twin == verifier and hash(twin) == hash(verifier) and asdict(twin) == asdict(verifier)
            assert twin.verdict(r"It is \boxed{7}.", "7") == 1.0
            twin.close()


@pytest.mark.parametrize("name", ["math", "exact", "em"])
def test_an_unknown_extractor_is_refused_at_construction(name):
    with pytest.raises(ValueError, match="extract must be known, got 'box'; did you mean 'boxed'"):
        VERIFIERS[name](extract="box")


def test_every_verifier_has_its_name():
    assert all(issubclass(kind, Verifier) and kind.name == name for name, kind in VERIFIERS.items())
