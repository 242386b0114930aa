import json
import re

import pytest

from apportion.answers import EXTRACTORS, extract
from apportion.data import TEMPLATES, make_template
from apportion.questions import Question

QUESTION = Question("", r"Find $\{x\}$ where {question} {0} and $1 + x = 3$.")

STATED = {
    "answer": "So x = 2.\nAnswer: 2",
    "answer_example": "Subtract 1: x = 2.\nAnswer: 2",
    "boxed": r"So it is $\boxed{2}$.",
    "tools": "<think> The tool says 2. </think> It is \\[ \\boxed{2} \\].",
    "choice": "It is the third.\nAnswer: C",
    "plain": r"It is \boxed{2}",
}
"""A completion that does what each template asks for."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_asks_the_question_once_and_is_read_by_its_extractor(name):
    template = TEMPLATES[name]
    messages = template.messages(QUESTION)
    assert [message["role"] for message in messages] == (["user"] if template.system is None else ["system", "user"])
    assert messages[-1]["content"].count(QUESTION.prompt) == 1
    assert template.text(QUESTION) == "\n\n".join(message["content"] for message in messages)
    assert extract(STATED[name], template.extractor) == ("C" if name == "choice" else "2")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_repeated_prompt_holds_no_answer_with_a_number_or_word(name):
    said = TEMPLATES[name].text(QUESTION).replace(QUESTION.prompt, "")
    assert not any(map(str.isalnum, extract(said, TEMPLATES[name].extractor) or ""))


def test_the_tool_template_shows_a_call_in_json_with_placeholders():
    system = TEMPLATES["tools"].system
    assert system is not None
    call = re.findall(r"<tool_call>\n(.*)\n</tool_call>", system)[-1]
    call = call.replace("<function-name>", '"search"').replace("<args-json-object>", '{"query": "x"}')
    assert json.loads(call) == {"name": "search", "arguments": {"query": "x"}}


def test_a_text_with_the_question_is_a_template():
    template = make_template("Q: {question}\nA {}:")
    assert template.messages(QUESTION) == [{"role": "user", "content": f"Q: {QUESTION.prompt}\nA {{}}:"}]
    assert template.extractor == "auto" and template.extractor in EXTRACTORS
    assert all(make_template(name) is TEMPLATES[name] for name in TEMPLATES)
