from __future__ import annotations

from apportion.verifiers import Exact


def test_texts_are_compared() -> None:
    verdicts = [Exact().verdict(rf"\boxed{{ {answer}}}", "1/2") for answer in ("1/2", "0.5", "")]
    assert verdicts == [1.0, 0.0, 0.0] and Exact().verdict(r"\boxed{1}", None) is None


def test_an_extractor_reads_only_its_own_form_of_answer() -> None:
    both = "Answer: 1\n\n" + r"\boxed{2}"
    assert [Exact(extract=how).verdict(both, "1") for how in ("boxed", "answer_line")] == [0.0, 1.0]
    assert Exact().with_extractor("answer_line").verdict(both, "1") == 1.0
    assert Exact(extract="boxed").with_extractor("answer_line").verdict(both, "1") == 0.0
