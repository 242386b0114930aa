"""Extraction from the ways in which models state an answer, and from texts made to be slow."""

from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.answers import EXTRACTORS, MathVerify, extract

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
    r"\boxed{5} \boxed{}": "5",
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

AUTO = {
    "The answer is 42. I hope this answer is helpful!": "42",
    "**Answer: 42**\n\nPlease tell me if the answer is unclear.": "42",
    "#### 42\n\nNote: the answer is rounded.": "42",
    "The answer is 42, since the answers are integers.": "42",
    "The answer is 42.": "42",
    "The answer is 42!": "42",
    "Answer: 42!": "42",
    "The answer is $5!$.": "5!",
    "\\boxed{5!}": "5!",
    "The answer is Paris. I hope this answer is helpful!": "Paris",
    "Answer: Paris\nThe answer is correct.": "Paris",
    "The final answer is no solution.": "no solution",
    "Is the answer 5? No. Answer: no solution": "no solution",
    "The answer is 5? No. The answer is 7.": "7",
    "The answer is x = 3.": "x = 3",
    "So the answer is (1, 2), which is on the line.": "(1, 2)",
    "Therefore the answer is $\\frac{1}{2}$ because it halves.": "\\frac{1}{2}",
    "The answer is 18 dollars, as required.": "18 dollars",
    "<answer>42</answer>": "42",
    "<answer> \\boxed{42} </answer>": "42",
    "<answer>42</answer>\nThis answer is right.": "42",
    '{"reasoning": "The answer is 7", "answer": 42}': "42",
    '{"answer": "42"}': "42",
    '```json\n{"final_answer": "1/2"}\n```': "1/2",
    '{"answer": -3.5}': "-3.5",
    '{"answer": ""}': None,
    "答案：42": "42",
    "所以答案是42。": "42",
    "答案为 $\\frac{1}{2}$": "\\frac{1}{2}",
    "最终答案：x=3": "x=3",
    "答えは42です。": "42",
    "답: 42": "42",
    "정답은 42": "42",
    "La réponse est 42.": "42",
    "Réponse : 42": "42",
    "La respuesta es 42.": "42",
    "Respuesta: 42": "42",
    "Die Antwort ist 42.": "42",
    "Die Antwort lautet: 42": "42",
    "Antwort: 42": "42",
    "A resposta é 42.": "42",
    "Resposta: 42": "42",
    "La risposta è 42.": "42",
    "Risposta: 42": "42",
    "Ответ: 42": "42",
    "**Ответ:** 42": "42",
    "#### 42": "42",
    "#### 18 dollars": "18 dollars",
    "#### $18": "18",
    "####  −3": "−3",
    "#### \\frac{1}{2}": "\\frac{1}{2}",
    "#### Paris": "Paris",
    "#### 1. Add\nThen": None,
    "#### Step 1: Add": None,
    "#### Answer: 5": "5",
    "##### Detail": None,
    "$\\boxed{1}$ and $\\boxed{2}$": "1, 2",
    "$\\boxed{1}$, $\\boxed{2}$": "1, 2",
    "\\boxed{5}\n\\boxed{5}": "5",
    "\\boxed{x=1} \\text{ or } \\boxed{x=2}": "x=1, x=2",
    "**Answer:** 42\n\nThis answer is reasonable because 42 < 50.": "42",
    "Answer: 42 (see above)": "42 (see above)",
    "The correct answer is: 42": "42",
    "ANSWER = 42": "42",
    "Answer - 42": None,
    "My answer is 42": "42",
    "The answers are 3 and 4.": "3 and 4",
    'The answer is "42".': "42",
    "The answer is `42`.": "42",
    "The answer is _42_.": "42",
    "Final Answer: The final answer is $42$": "42",
    "The answer is: \n\n42": "42",
    "Answer:\n\n$$x=5$$": "x=5",
    "The answer is therefore 42.": "42",
    "The answer is simply 42.": "42",
    "The answer is then $42$.": "42",
    "the answer to the question is 42": "42",
    "The answer would be 42.": "42",
    "The answer must be 42.": "42",
    "The answer comes out to 42.": None,
    "Answer is 42": "42",
    "The answer is about 42.": "about 42",
    "The answer is approximately 3.14.": "approximately 3.14",
    "The answer is -5.": "-5",
    "The answer is .5.": ".5",
    "The answer is 3.5.": "3.5",
    "The answer is 3:00 PM.": "3:00 PM",
    "Answer: 3 p.m.": "3 p.m",
    "The answer is 1,234.50 dollars.": "1,234.50 dollars",
    "The answer is not 5 but 7.": "not 5 but 7",
    "I cannot give an answer.": None,
    "No answer is possible.": None,
    "What is the answer? It is 5.": None,
    "The answer is 42. But wait, is the answer right?": "42",
    "the answer is A": "A",
    "Answer: yes": "yes",
    "Answer: True": "True",
    "<reasoning>Answer: 3</reasoning><answer>4</answer>": "4",
    "[THINK]Answer: 3[/THINK]Answer: 4": "4",
    "◁think▷3◁/think▷Answer: 4": "4",
    "<seed:think>a</seed:think>Answer: 4": "4",
    "<|begin_of_thought|>x<|end_of_thought|>Answer: 4": "4",
    "<thinking>Answer: 3": None,
    "<THINK>Answer: 3": None,
    "< think >Answer: 3": "3",
}

CHOICES = {
    "Answer: B\n\nExplanation: The answer is correct because cells divide.": "B",
    "The answer is B. This answer is supported by line 3.": "B",
    "The correct answer is B. The other choice is wrong.": "B",
    "The answer is B (photosynthesis).": "B",
    "The answer is (B): photosynthesis": "B",
    "The answer is B, photosynthesis.": "B",
    "ANSWER: B - photosynthesis": "B",
    "ANSWER: B – photosynthesis": "B",
    "ANSWER: B!": "B",
    "The answer is option B, which says that plants make sugar.": "B",
    'ANSWER: "B"': "B",
    "ANSWER: _B_": "B",
    "ANSWER: <B>": "B",
    "<answer>B</answer>": "B",
    '{"answer": "B"}': "B",
    "ANSWER: None of the above": None,
    "ANSWER: Don't know": None,
    "ANSWER: I don't know": None,
    "ANSWER: B": "B",
    "The answer is B.": "B",
    "Answer: B, not A": "B",
    "B": "B",
    "(b)": "B",
    "**B**": "B",
    "The answer is B because it's right": "B",
    "I choose option B": None,
    "Option B is correct.": None,
    "The correct option is B": "B",
    "B is the answer.": None,
    "Answer: A or B": None,
    "Answer: A/B": None,
    "Answer: both A and B": None,
    "The answer is a": "A",
    "The answer is a dog": None,
    "ANSWER: $B$": "B",
    "ANSWER: \\(B\\)": "B",
    "ANSWER: \\boxed{B}": "B",
    "ANSWER: **B: photosynthesis**": "B",
    "ANSWER: [B]": "B",
    "ANSWER: {B}": "B",
    "ANSWER: B\n\nA is wrong because the answer is C-like.": "B",
    "Answer: C++": None,
    "The answer is E = mc^2": None,
    "答案：B": "B",
    "答案是B。": "B",
    "La respuesta es B.": "B",
    "Answer: I": "I",
    "Answer: I am not sure": None,
    "The best answer is D).": "D",
    "The answer is (D": "D",
    "Correct answer: D": "D",
    '"answer": "D"': "D",
    '{"answer": "D) Paris"}': "D",
    '{"choice": "D"}': None,
    "<answer>D. Paris</answer>": "D",
    "<answer>(D)</answer>": "D",
    "Answer: B…": "B",
    "Answer: B;": "B",
    "Answer: B / photosynthesis": None,
    "ANSWER: B|photosynthesis": None,
    "The answer is B: 5": "B",
    "ANSWER: B.photosynthesis": None,
    "The answer is Choice B": "B",
    "The answer is letter B": "B",
    "#### B": "B",
    "Therefore, B is correct.": None,
    "The answer is B, C": None,
    "The answer is B and not C": "B",
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


TABLES = {"boxed": BOXED, "answer_line": STATED, "auto": AUTO, "choice": CHOICES, "last_number": NUMBERS}


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        (how, text, answer)
        for how, table in (
            ("boxed", BOXED),
            ("answer_line", STATED),
            ("auto", AUTO),
            ("choice", CHOICES),
            ("last_number", NUMBERS),
        )
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


FORMS = [
    "Answer: {}", "**Answer:** {}", "The answer is {}.", "So the answer is ${}$.", r"It is \boxed{{{}}}.", "#### ${}$",
    "Final Answer: The final answer is ${}$. I hope it is correct.", "<answer>{}</answer>", "## Final answer\n\n${}$",
    "The answer is ${}$. I hope this answer is helpful!", "Answer: ${}$\n\nThe answer is reasonable.", "答案是${}$。",
    "La respuesta es ${}$.", "<think>Answer: 1</think>The answer is ${}$, because the others are wrong.",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_published_answers_are_read_whole_from_every_form(form):
    golds = (Path(__file__).parent / "golds.txt").read_text(encoding="utf-8").splitlines()
    with MathVerify() as math:
        wrong = [gold for gold in golds if not math.same(extract(form.format(gold)) or "", gold)]
    assert wrong == []


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
        started = process_time()
        extract(text, how)
        assert process_time() - started < 1.0, how  # at most 0.3 s on one slow core; quadratic time would be minutes


def test_a_text_of_thousands_of_characters_is_not_an_answer():
    assert extract(f"\\boxed{{{'x' * 3000}}}") is None
    assert extract(f"\\boxed {'x' * 3000}") is None
    assert extract(f"Answer: {'x ' * 3000}") is None
    assert extract(f"The answer is 42. {'x ' * 3000}") == "42"
    assert extract(f"Answer: 42\n{'x ' * 3000}") == "42"
