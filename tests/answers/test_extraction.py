"""Extraction from the ways in which models state an answer, and from texts made to be slow."""

from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.answers import EXTRACTORS, extract

BOXED = {
    r"We get \boxed{42}.": "42",
    r"Thus $\boxed{\frac{1}{2}}$ is it.": r"\frac{1}{2}",
    r"First \boxed{7}, or rather \boxed{8}": "8",
    r"\[\boxed{\{1, 2\}}\]": r"\{1, 2\}",
    r"\boxed{\left\{ x : x > 0 \right\}}": r"\left\{ x : x > 0 \right\}",
    r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}": r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    "\\boxed{\n  x =  3\n}": "x = 3",
    r"\boxed {5}": "5",
    r"\boxed 5": "5",
    r"it costs $\boxed 18$ dollars": "18",
    r"\fbox{-3.}": "-3",
    r"\boxed{\$18.00}": "18.00",
    r"\boxed{50\%}": r"50\%",
    r"\boxed{}": None,
    r"\boxed": None,
    r"\boxed{12 + 3": None,
    r"First \boxed{7}, or rather \boxed{8": None,
    r"\boxedtext{5}": None,
    r"\fboxsep 5": None,
    "no box": None,
}

STATED = {
    "Answer: 42": "42",
    "ANSWER: 42": "42",
    "**Answer:** 42": "42",
    "**Answer**: 42": "42",
    "**Answer: 42**": "42",
    "Answer: **42** dollars": "42 dollars",
    "### Answer: $42$.": "42",
    "The answer is 42.": "42",
    "So the answer is **3.5 km**. I hope it is correct.": "3.5 km",
    "The answer is: \\(\\frac{1}{2}\\).": r"\frac{1}{2}",
    "Final Answer: The final answer is $x = 3$. I hope it is correct.": "x = 3",
    "Therefore, the final answer is: $\\boxed{42}$. I hope it is correct.": "42",
    "The answers are 1 and 2.": "1 and 2",
    "The answer is (1, 2).": "(1, 2)",
    "Answer: St. Louis": "St. Louis",
    "Answer: 7\n\nThis follows from the second line.": "7",
    "Answer: 6\nWait, no.\nAnswer: 7": "7",
    "**Final Answer**\n\n42": "42",
    "## Final Answer\n$$\nx^2\n$$": "x^2",
    "Final answer:\n\\[ \\frac{1}{2} \\]": r"\frac{1}{2}",
    "Answer:\nFirst we add.\nThen we": None,
    "She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18": "18",
    "#### 1,234": "1,234",
    "#### -5\n": "-5",
    "#### Step 3: add": None,
    "#### 3. Add": None,
    "Answer:": None,
    "Answer: $$": None,
    r"Answer: \boxed{4": None,
    "I cannot answer this.": None,
    "So 6 x 7 = 42": None,
    "": None,
}

CHOICES = {
    "Answer: (C)": "C",
    "Answer: c": "C",
    "Answer: **(J)**": "J",
    "Answer: C. Paris": "C",
    "Answer: C) Paris": "C",
    "the answer is C.": "C",
    "The correct answer is **C) Paris**.": "C",
    "The answer is C because it is the capital.": "C",
    "The answer is option D.": "D",
    "The correct option is **B**.": "B",
    "Therefore I choose **B**.": "B",
    r"\boxed{\text{B}}": "B",
    r"\boxed{\textbf{(E)}\ 7}": "E",
    r"$\boxed{\mathrm{(a)}}$": "A",
    r"This is \boxed{42}, so the answer is (D)": "D",
    "Let us see.\n**D**": "D",
    "Let us see.\nD": "D",
    "Let us see.\n(D).": "D",
    "A dog": None,
    "The answer is A dog.": None,
    "The answer is I think so.": None,
    "The answer is A and B.": None,
    "Answer: A, C": None,
    "Answer: K": None,
    "A. Rome\nB. Paris": None,
    "**A**: wrong": None,
    "Let us see.\nPlan B": None,
}

NUMBERS = {
    "She pays $1,250.50.": "1250.50",
    "12 - 5 = 7": "7",
    "12-5": "5",
    "f(3)-4": "4",
    "x = -5": "-5",
    "x = −5": "-5",
    "+5": "5",
    "1,000,000 people": "1000000",
    "1,2345": "2345",
    "about .5": ".5",
    "3/4 of it": "3/4",
    r"$-\frac{3}{4}$": "-3/4",
    "1e-5": "1e-5",
    "50%": "50",
    "the 12th": "12",
    "it ends with 18.": "18",
    "v2": None,
    "none": None,
}


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        (how, text, answer)
        for how, table in (("boxed", BOXED), ("answer_line", STATED), ("choice", CHOICES), ("last_number", NUMBERS))
        for text, answer in table.items()
    ],
)
def test_statements_of_models_are_read(how, text, answer):
    assert extract(text, how) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"Answer: 3, that is \boxed{4}. The answer is 5.", "4"),
        ("The answer is 5.", "5"),
        (r"The answer is 5. That is \boxed{4", "5"),
        ("So 6 x 7 = 42", None),
        ("**D**", None),
    ],
)
def test_auto_takes_the_box_else_the_answer_line_and_never_guesses(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize("how", EXTRACTORS)
def test_only_what_follows_the_reasoning_counts(how):
    said = "The answer is \\boxed{5}.\nC"
    assert extract(f"<think>Is it \\boxed{{4}}? Answer: 4, B</think>\n{said}", how) == extract(said, how) is not None
    assert extract(f"Is it 4?</think>{said}", how) == extract(said, how)
    assert extract(f"<think>{said}", how) is None
    assert extract(f"<think>4</think>{said}<think>Or", how) is None
    assert extract(f"{said}</think>", how) is None


def test_an_unknown_extractor_is_refused():
    with pytest.raises(ValueError, match=r"how must be one of auto, boxed, .*, got 'box'"):
        extract("7", how="box")


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


MANY = 1_000_000
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
    "headings": "####\n" * (MANY // 5) + "x",
    "digits": "1" * MANY + "x",
    "thousands": "1" + ",111" * (MANY // 4) + "1",
    "thinking": "<think></think>" * (MANY // 15) + "x",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_a_megabyte_made_to_be_slow_takes_a_fraction_of_a_second(text):
    for how in ("auto", "choice", "last_number"):
        started = perf_counter()
        extract(text, how)
        assert perf_counter() - started < 1.0, how  # at most 0.3 s on one slow core; quadratic time would be minutes


def test_a_text_of_thousands_of_characters_is_not_an_answer():
    assert extract(f"\\boxed{{{'x' * 3000}}}") is None
    assert extract(f"\\boxed {'x' * 3000}") is None
    assert extract(f"Answer: {'x ' * 3000}") is None
    assert extract(f"The answer is 42. {'x ' * 3000}") == "42"
    assert extract(f"Answer: 42\n{'x ' * 3000}") == "42"
