"""Extraction from the ways in which models state an answer, and from texts made to be slow."""

import json
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.answers import EXTRACTORS, MathVerify, extract
from tests.cases import lines

TABLES = json.loads((Path(__file__).parent / "statements.json").read_text())
"""What models say, and the answer in it, for each extractor."""


@pytest.mark.parametrize("how", TABLES)
def test_statements_of_models_are_read(how):
    wrong = {text: found for text, answer in TABLES[how].items() if (found := extract(text, how)) != answer}
    assert not wrong


AUTO = r"""
    Answer: 3, that is \boxed{4}. The answer is 5. => 4
    The answer is 5.                               => 5
    The answer is 5. That is \boxed{4              => 5
    So 6 x 7 = 42                                  =>
    **D**                                          =>
"""


def test_auto_takes_the_box_else_the_answer_line_and_never_guesses():
    assert not [text for text, answer in lines(AUTO) if (extract(text) or "") != answer]


@pytest.mark.parametrize("how", EXTRACTORS)
def test_only_what_follows_the_reasoning_counts(how):
    said = "The answer is \\boxed{5}.\nC"
    assert extract(f"<think>Is it \\boxed{{4}}? Answer: 4, B</think>\n{said}", how) == extract(said, how) is not None
    assert extract(f"Is it 4?</think>{said}", how) == extract(said, how)
    for unfinished in (f"<think>{said}", f"<think>4</think>{said}<think>Or", f"{said}</think>"):
        assert extract(unfinished, how) is None


FORMS = [
    "Answer: {}", "**Answer:** {}", "The answer is {}.", "So the answer is ${}$.", r"It is \boxed{{{}}}.", "#### ${}$",
    "Final Answer: The final answer is ${}$. I hope it is correct.", "<answer>{}</answer>", "## Final answer\n\n${}$",
    "The answer is ${}$. I hope this answer is helpful!", "Answer: ${}$\n\nThe answer is reasonable.", "答案是${}$。",
    "La respuesta es ${}$.", "<think>Answer: 1</think>The answer is ${}$, because the others are wrong.",
]  # fmt: skip


def test_published_answers_are_read_whole_from_every_form():
    golds = (Path(__file__).parent / "golds.txt").read_text().splitlines()
    with MathVerify() as math:
        wrong = [
            (gold, form) for form in FORMS for gold in golds if not math.same(extract(form.format(gold)) or "", gold)
        ]
    assert not wrong


braced = st.recursive(
    st.text("ab1+\\", max_size=4).map(lambda text: text.replace("\\", "\\}")),
    lambda inner: st.builds(lambda a, b: f"{a}{{{b}}}", inner, inner),
    max_leaves=6,
)


@settings(max_examples=50)
@given(before=st.text(), content=braced, after=st.text("ab1 .}$"))
def test_a_box_holds_what_its_balanced_braces_enclose(before, content, after):
    text = f"{before.replace('<', '')} \\boxed{{x{content}y}}{after}"
    assert extract(text, "boxed") == f"x{content}y"


@given(st.text(st.sampled_from("aA1.,:$*\\{}() \n#") | st.characters()), st.sampled_from(list(EXTRACTORS)))
def test_an_answer_has_nothing_around_it_and_is_never_empty(text, how):
    answer = extract(f"Answer: {text}", how)
    assert answer is None or (answer and answer == answer.strip().strip("$"))


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{:,}", "{}", "{}.", "${:,}$", "about {}%", "({})"]))
def test_the_last_number_is_read_back(number, style):
    assert int(extract(f"7 and {style.format(number)} people", "last_number")) == number


MANY = 300_000
SLOW = {
    "boxes": "\\boxed{" * (MANY // 7),
    "braces": "\\boxed{" + "{" * MANY,
    "backslashes": "\\boxed{" + "\\" * MANY,
    "spaces": "Answer:" + " " * MANY + "x",
    "lines": "Answer:" + "\n" * MANY + "x",
    "answers": "answer: " * (MANY // 8),
    "sentences": "The answer is " + "a. " * (MANY // 3) + "b",
    "stars": "Answer: " + "**a" * (MANY // 3),
    "brackets": "Answer: " + "(A" * (MANY // 2),
    "dollars": "Answer: " + "$" * MANY + "x",
    "headings": "####\n" * (MANY // 5) + "#### " + " " * (MANY // 5) + "x",
    "digits": "1" * MANY + "x",
    "thousands": "1" + ",111" * (MANY // 4) + "1",
    "thinking": "<think></think>" * (MANY // 15) + "x",
    "between boxes": ("\\boxed{1}" + " " * 1500 + "x") * (MANY // 1500),
    "clauses": ("The answer is $" + " " * 1900 + "$\n") * (MANY // 1900),
    "signs": ("The answer is so" + "✅" * 1900 + "x\n") * (MANY // 1900),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_a_long_text_made_to_be_slow_takes_a_fraction_of_a_second(text):
    for how in ("auto", "choice", "last_number"):
        started = process_time()
        extract(text, how)
        assert process_time() - started < 0.4, how  # at most 0.12 s on one slow core; quadratic time would be many


def test_a_text_of_thousands_of_characters_is_not_an_answer():
    assert extract(f"\\boxed{{{'x' * 3000}}}") is None
    assert extract(f"\\boxed {'x' * 3000}") is None
    assert extract(f"Answer: {'x ' * 3000}") is None
    assert extract(f"The answer is 42. {'x ' * 3000}") == "42"
    assert extract(f"Answer: 42\n{'x ' * 3000}") == "42"
