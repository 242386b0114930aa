"""Layouts: functions that read the prompt and the gold answer from a row of a published data set.

A CSV has no lists, so a cell with a list is JSON there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from apportion.data.templates import REMINDER, STEPS
from apportion.types import prompt_id
from apportion.untrusted import parse_json, shown

Row = Mapping[str, Any]
Layout = Callable[[Row, str, str], tuple[Any, Any]]
"""A row and the names of its two columns -> the prompt and the gold answer. Raises ValueError if it holds none."""

WRONG_OPTIONS = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
LETTERS = "ABCD"


def plain(row: Row, prompt: str, answer: str) -> tuple[Any, Any]:
    """Return both cells as they are, but write 142.0 as 142, because AMC's file holds whole numbers as floats."""
    gold = row.get(answer)
    return row.get(prompt), int(gold) if isinstance(gold, float) and gold.is_integer() else gold


def conversation(row: Row, prompt: str, answer: str) -> tuple[Any, Any]:
    """Read verl's layout: a prompt of one message, maybe in DAPO's template, and an object with ``ground_truth``.

    >>> wrapped = [{"role": "user", "content": f"{STEPS} 1 + 1? {REMINDER}"}]
    >>> conversation({"prompt": wrapped, "reward_model": {"ground_truth": "2"}}, "prompt", "reward_model")
    ('1 + 1?', '2')
    """
    messages, graded = _decode(row.get(prompt)), _decode(row.get(answer))
    match messages:
        case [{"content": str(content)}]:
            question = content.strip().removeprefix(STEPS).removesuffix(REMINDER).strip()
        case _:
            raise ValueError(f"{prompt} must be a list of one message, got {shown(messages)}; give it its content")
    if REMINDER in question or STEPS in question:
        raise ValueError(f"{prompt} must be in DAPO's template or in none, got {shown(question)}; remove the template")
    if not isinstance(graded, dict) or "ground_truth" not in graded:
        raise ValueError(f"{answer} must be an object with ground_truth, got {shown(graded)}; put the answer there")
    return question, graded["ground_truth"]


def options(row: Row, prompt: str, answer: str) -> tuple[Any, Any]:
    r"""Read GPQA's layout: return the question with lettered options, and the letter of the right one.

    Hashes of the content decide the order of the options. So it is the same in every run and for every order of the
    rows, and does not depend on which option is right.

    >>> row = {"Question": "Which?", "Right": "0", **dict(zip(WRONG_OPTIONS, "123", strict=True))}
    >>> options(row, "Question", "Right")
    ('Which?\n\nA) 0\nB) 2\nC) 1\nD) 3', 'A')
    """
    columns = (prompt, answer, *WRONG_OPTIONS)
    question, *texts = (str(row.get(column) or "").strip() for column in columns)
    for column, text in zip(columns, (question, *texts), strict=True):
        if not text:
            raise ValueError(f"a question must have four options, got nothing in {column}; fill it in")
    seed = prompt_id("\n".join([question, *sorted(texts)]))
    shuffled = sorted(texts, key=lambda text: prompt_id(text, dataset=seed))
    listed = "\n".join(f"{letter}) {text}" for letter, text in zip(LETTERS, shuffled, strict=True))
    return f"{question}\n\n{listed}", LETTERS[shuffled.index(texts[0])]


def context(row: Row, prompt: str, answer: str) -> tuple[Any, Any]:
    r"""Read OlympiadBench's layout: return the context, if any, with the question, and all answers as a list.

    >>> row = {"question": "Find x and y.", "context": "Let $x < y$.", "final_answer": ["$1$", "$2$"]}
    >>> context(row, "question", "final_answer")
    ('Let $x < y$.\n\nFind x and y.', '$1$, $2$')
    """
    question, before, answers = row.get(prompt), row.get("context"), _decode(row.get(answer))
    if isinstance(answers, list):
        answers = ", ".join(map(str, answers))
    return f"{before}\n\n{question}" if before and question else question, answers


def aliases(row: Row, prompt: str, answer: str) -> tuple[Any, Any]:
    """Read MuSiQue's layout: return the question, and a list of its answer and the aliases, which are right as well.

    >>> row = {"question": "Which river?", "answer": "Seine", "answer_aliases": ["River Seine"]}
    >>> aliases(row, "question", "answer")
    ('Which river?', ['Seine', 'River Seine'])
    """
    others = _decode(row.get("answer_aliases"))
    others = [] if others in (None, "", "[]") else others
    if not isinstance(others, list):
        raise ValueError(f"answer_aliases must be a list of texts, got {shown(others)}; put the text in a list")
    return row.get(prompt), [row.get(answer), *others]


def _decode(cell: Any) -> Any:
    """Parse a cell that is the JSON of a list of texts or messages, or of an object; return others as they are."""
    if not isinstance(cell, str) or cell.lstrip()[:2] not in ('["', "[{", '{"'):
        return cell
    try:
        return parse_json(cell)
    except ValueError:
        return cell
