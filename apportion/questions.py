"""Questions from a file: a prompt, its id, and the gold answer if it is known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.answers.extraction import extract
from apportion.tables import Table, TableError, read_columns, row_location
from apportion.types import prompt_id
from apportion.untrusted import parse_number, shown

PROMPT_COLUMNS = ("prompt", "question", "problem")
GOLD_COLUMNS = ("answer", "gold", "solution")

TEMPLATE = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The default prompt template. ``{question}`` is replaced; all other text is sent as it is."""


@dataclass(frozen=True)
class Question:
    """One question. An empty ``id`` becomes a content hash of the prompt; ``gold`` is None if unknown.

    ``rate`` is a success rate that is known before training, within [0, 1]; None if unknown.

    >>> Question("sum", "What is 2 + 2?", "4").gold
    '4'
    """

    id: str
    prompt: str
    gold: str | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise ValueError(f"a prompt must be a text, got {shown(self.prompt)}; write it, or drop the question")
        try:
            self.prompt.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a prompt must be Unicode, got {self.prompt[error.start]!r} in it; correct it") from error
        if not self.id:
            object.__setattr__(self, "id", prompt_id(self.prompt))


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Return the first ``limit`` questions in the .csv, .jsonl or .parquet file at ``path``; all of them by default.

    The prompt is read from the first column found of prompt, question, problem. Gold is read from the first found of
    answer, gold, solution; if it holds ``\\boxed{...}`` or ``####``, only the last box, else the text after the last
    ``####``, counts. The id is read from id. Gold and id are optional.

    Raises TableError for an unreadable file, a prompt that is not a text, and a repeated id.
    """
    if limit is not None and limit < 1:
        raise TableError(f"limit must be at least 1, got {limit}; leave it out for all questions")
    return make_questions(read_columns(path, [], [*PROMPT_COLUMNS, *GOLD_COLUMNS, "id"]))[:limit]


def make_questions(
    table: Table, prompt_column: str | None = None, gold_column: str | None = None, rate_column: str | None = None
) -> list[Question]:
    """Return the questions in the rows of ``table``. Columns that are not named are found as in ``read_questions``.

    Raises TableError as ``read_questions`` does, and if a named column is missing.
    """
    for column in (prompt_column, gold_column, rate_column):
        if column is not None and column not in table.cells:
            raise TableError(f"{table.path} must have a column {column}, got {', '.join(table.cells)}; name another")
    prompts = _first(table, PROMPT_COLUMNS if prompt_column is None else (prompt_column,))
    if prompts is None:
        raise TableError(
            f"{table.path} must have a column {', '.join(PROMPT_COLUMNS[:-1])} or {PROMPT_COLUMNS[-1]}; add one"
        )
    golds, ids = _first(table, GOLD_COLUMNS if gold_column is None else (gold_column,)), table.cells.get("id")
    none = (None,) * len(table)
    rates = none if rate_column is None else table.cells[rate_column]
    places = [row_location(table.path, line) for line in table.lines]
    questions = [make_question(*row) for row in zip(places, ids or none, prompts, golds or none, rates, strict=True)]
    refuse_duplicate_ids(questions, places)
    return questions


def refuse_duplicate_ids(questions: Sequence[Question], places: Sequence[str] | None = None) -> None:
    """Raise TableError if two ``questions`` have the same id. ``places`` are their locations, by default numbers.

    >>> refuse_duplicate_ids([Question("a", "1 + 1?"), Question("a", "2 + 2?")])
    Traceback (most recent call last):
    apportion.tables.TableError: an id must be there once, got 'a' in question 1 and question 2; rename or remove one
    """
    places = [f"question {number}" for number in range(1, len(questions) + 1)] if places is None else places
    seen: dict[str, str] = {}
    for question, place in zip(questions, places, strict=True):
        first = seen.setdefault(question.id, place)
        if first != place:
            raise TableError(
                f"an id must be there once, got {shown(question.id)} in {first} and {place}; rename or remove one"
            )


def fill_template(template: str, question: Question) -> str:
    """Return ``template`` with the prompt in place of ``{question}``. All other braces are kept as they are.

    >>> fill_template("Q: {question} {}", Question("", "What is {1, 2}?"))
    'Q: What is {1, 2}? {}'
    """
    return template.replace("{question}", question.prompt)


def _first(table: Table, columns: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the cells of the first of ``columns`` that the table has; None if it has none."""
    return next((table.cells[column] for column in columns if column in table.cells), None)


def make_question(place: str, id: Any, prompt: Any, gold: Any, rate: Any = None) -> Question:
    """Return the question in the cells of one row. Raise TableError, which names ``place``, if they hold none."""
    if gold is not None and (isinstance(gold, bool) or not isinstance(gold, (str, int, float))):
        raise TableError(f"a gold answer must be a text or a number, got {shown(gold)} in {place}; correct it")
    if id is not None and (isinstance(id, bool) or not isinstance(id, (str, int))):
        raise TableError(f"an id must be a text or an integer, got {shown(id)} in {place}; correct it")
    missing = gold in (None, "") or gold != gold  # data frames write an empty cell as NaN
    try:
        after = re.findall(r"^####\s*(.+?)\s*$", str(gold), re.MULTILINE)  # the answer after a worked solution
        final = None if missing else extract(str(gold), "boxed") or (after[-1] if after else str(gold).strip())
        return Question("" if id is None else str(id), prompt, final, _rate(rate))
    except ValueError as error:
        raise TableError(f"{place}: {error}") from error


def _rate(cell: Any) -> float | None:
    """Return the known rate in a cell; None for an empty one. Raise ValueError if it holds no rate."""
    if cell in (None, "") or cell != cell:  # data frames write an empty cell as NaN
        return None
    try:
        rate = parse_number(cell) if isinstance(cell, str) else float(cell)
    except (TypeError, ValueError):
        rate = -1.0
    if isinstance(cell, bool) or not 0 <= rate <= 1:
        raise ValueError(
            f"a known rate must be a number between 0 and 1, got {shown(cell)}; divide the successes by the trials, or "
            "leave it empty"
        )
    return rate
