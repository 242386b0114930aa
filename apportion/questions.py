"""Questions from a file: a prompt, its id, and the gold answers if they are known."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apportion.answers.extraction import extract
from apportion.messages import Messages, make_messages, prompt_hash
from apportion.rows import TableError, row_location
from apportion.tables import columns_of, read_rows
from apportion.untrusted import parse_json, parse_number, shown

PROMPT_COLUMNS = ("prompt", "question", "problem")
GOLD_COLUMNS = ("answer", "gold", "solution")
ALIAS_COLUMNS = ("aliases", "golds")
COLUMNS = (*PROMPT_COLUMNS, *GOLD_COLUMNS, *ALIAS_COLUMNS, "id")
GOLD_FIELDS = ("value", "text")
"""Fields of an object that hold gold answers, before those of its "aliases"."""

TEMPLATE = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Default prompt template. ``{question}`` is replaced, and all other text is kept."""


@dataclass(frozen=True)
class Question:
    """One question. An empty ``id`` becomes a content hash of the prompt; ``gold`` is None if unknown.

    ``prompt`` is a text, or chat messages with a role and a content each. ``golds`` are all right answers, ``gold``
    first; either may be left out. ``rate`` is a success rate that is known before training, within [0, 1]; None if
    unknown.

    >>> Question("sum", "What is 2 + 2?", "4").gold
    '4'
    >>> Question("city", "The capital of France?", golds=("Paris", "Paris, France")).gold
    'Paris'
    """

    id: str
    prompt: str | Messages
    gold: str | None = None
    rate: float | None = None
    golds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.prompt, (list, tuple)):
            object.__setattr__(self, "prompt", make_messages(self.prompt))
        else:
            _check_prompt(self.prompt)
        if isinstance(self.golds, str):
            raise ValueError(f"golds must be a tuple of texts, got {shown(self.golds)}; write (gold,)")
        golds = [*([] if self.gold is None else [self.gold]), *self.golds]
        _check_texts("an id", [] if self.id is None else [self.id])
        _check_texts("a gold answer", golds)
        object.__setattr__(self, "golds", tuple(dict.fromkeys(golds)))
        object.__setattr__(self, "gold", next(iter(golds), None))
        if not self.id:
            object.__setattr__(self, "id", prompt_hash(self.prompt))

    @property
    def text(self) -> str:
        """The prompt as a text. Raises ValueError for chat messages."""
        if not isinstance(self.prompt, str):
            raise ValueError(
                f"a prompt must be a text here, got chat messages in question {shown(self.id)}; write it as a text"
            )
        return self.prompt


def _check_prompt(prompt: Any) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(
            f"a prompt must be a text, got {shown(prompt)}; write a text or chat messages, or drop the question"
        )
    _check_texts("a prompt", [prompt])


def _check_texts(name: str, texts: Sequence[Any]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must be a text, got {shown(text)}; write it with str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} must be Unicode, got {text[error.start]!r} in it; correct it") from error


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Return the first ``limit`` questions in the .csv, .jsonl or .parquet file at ``path``; all of them by default.

    The prompt is read from the first column found of prompt, question, problem: a text, or a list of chat messages.
    Gold is read from the first found of answer, gold, solution; if it holds ``\\boxed{...}`` or ``####``, only
    the last box, else the text after the last ``####``, counts. A list holds several gold answers, and so does an
    object such as TriviaQA's {"value": "Paris", "aliases": ["Paris, France"]}. The columns aliases and golds hold more.
    The id is read from id. Prompts that are repeated without an id are numbered: hash, hash-2, hash-3. Gold and id are
    optional.

    Raises TableError for an unreadable file, a prompt that is neither, and a repeated id.
    """
    if limit is not None and limit < 1:
        raise TableError(f"limit must be at least 1, got {limit}; leave it out for all questions")
    questions, places = _questions(path, list(read_rows(path, COLUMNS)))
    questions = number_repeats(questions)
    refuse_duplicate_ids(questions, places)
    return questions[:limit]


def read_golds(path: Path) -> dict[str, Question]:
    """Return questions by id, read from the file at ``path``. A question without id has its prompt's. Columns as above.

    The prompt of a row without one is its id.

    Raises TableError for an unreadable file, a row without id and prompt, and a repeated id.
    """
    rows = list(read_rows(path, COLUMNS))
    named = {column for _, row in rows for column in row}
    if "id" in named and not named & {*PROMPT_COLUMNS}:
        rows = [(line, {PROMPT_COLUMNS[0]: str(row.get("id")), **row}) for line, row in rows]
    return {question.id: question for question in make_questions(path, rows)}


def make_questions(source: Path, rows: Sequence[tuple[int, dict[str, Any]]], *columns: str | None) -> list[Question]:
    """Return the questions in ``rows`` of ``source``, each with its line.

    ``columns`` are those of the prompt, of gold and of the rate. Without a name the first two are found as in
    ``read_questions``, and no rate is read. Raises TableError as ``read_questions`` does, if a named column is missing,
    and for a repeated prompt without an id.
    """
    questions, places = _questions(source, rows, *columns)
    refuse_duplicate_ids(questions, places)
    return questions


def _questions(
    source: Path,
    rows: Sequence[tuple[int, dict[str, Any]]],
    prompt: str | None = None,
    gold: str | None = None,
    rate: str | None = None,
) -> tuple[list[Question], list[str]]:
    """Return the questions in ``rows``, and their locations. Raises TableError."""
    found = columns_of(source, rows)
    for column in (prompt, gold, rate):
        if column is not None and column not in found:
            raise TableError(f"{source} must have a column {column}, got {', '.join(found)}; name another")
    prompt = prompt or next((column for column in PROMPT_COLUMNS if column in found), None)
    gold = gold or next((column for column in GOLD_COLUMNS if column in found), None)
    if prompt is None:
        raise TableError(
            f"{source} must have a column {', '.join(PROMPT_COLUMNS[:-1])} or {PROMPT_COLUMNS[-1]}; add one"
        )
    places = [row_location(source, line) for line, _ in rows]

    def cell(row: dict[str, Any], column: str | None) -> Any:
        return None if column is None else row.get(column)

    return [
        make_question(
            place,
            row.get("id"),
            row.get(prompt),
            cell(row, gold),
            cell(row, rate),
            [row.get(column) for column in ALIAS_COLUMNS],
        )
        for place, (_, row) in zip(places, rows, strict=True)
    ], places


def number_repeats(questions: Sequence[Question]) -> list[Question]:
    """Return ``questions`` with "-2", "-3" and so on appended to the id of a repeated prompt that has no id of its own.

    >>> first, second, third = number_repeats([Question("", "1 + 1?")] * 2 + [Question("a", "1 + 1?")])
    >>> second.id == f"{first.id}-2", third.id
    (True, 'a')
    """
    seen, made = Counter[str](), []
    for question in questions:
        if question.id == prompt_hash(question.prompt):
            seen[question.id] += 1
            if (number := seen[question.id]) > 1:
                question = replace(question, id=f"{question.id}-{number}")
        made.append(question)
    return made


def refuse_duplicate_ids(questions: Sequence[Question], places: Sequence[str] | None = None) -> None:
    """Raise TableError if two ``questions`` have the same id. ``places`` are their locations, by default numbers.

    >>> refuse_duplicate_ids([Question("a", "1 + 1?"), Question("a", "2 + 2?")])
    Traceback (most recent call last):
    apportion.rows.TableError: an id must be there once, got 'a' in question 1 and question 2; rename or remove one
    """
    places = [f"question {number}" for number in range(1, len(questions) + 1)] if places is None else places
    seen: dict[str, str] = {}
    for question, place in zip(questions, places, strict=True):
        first = seen.setdefault(question.id, place)
        if first != place:
            raise TableError(
                f"an id must be there once, got {shown(question.id)} in {first} and {place}; rename or remove one"
            )


def fill_template(template: str, question: Question) -> str | Messages:
    """Return ``template`` with the prompt in place of ``{question}``. All other braces are kept as they are.

    Of chat messages, the last one of the user is put into the template, and the others are kept as they are.

    >>> fill_template("Q: {question} {}", Question("", "What is {1, 2}?"))
    'Q: What is {1, 2}? {}'
    >>> fill_template("Q: {question}", Question("", ({"role": "user", "content": "6 x 7?"},)))
    ({'role': 'user', 'content': 'Q: 6 x 7?'},)
    """
    if isinstance(question.prompt, str):
        return template.replace("{question}", question.prompt)
    messages = list(question.prompt)
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    messages[last] = {"role": "user", "content": template.replace("{question}", messages[last]["content"])}
    return tuple(messages)


def make_question(
    place: str, id: Any, prompt: Any, gold: Any, rate: Any = None, aliases: Sequence[Any] = ()
) -> Question:
    """Return the question in the cells of one row. Raise TableError, which names ``place``, if they hold none."""
    if id is not None and (isinstance(id, bool) or not isinstance(id, (str, int))):
        raise TableError(f"an id must be a text or an integer, got {shown(id)} in {place}; correct it")
    try:
        golds = [*_golds(gold), *(each for cell in aliases for each in _golds(_listed(cell)))]
        return Question("" if id is None else str(id), prompt, rate=_rate(rate), golds=tuple(golds))
    except ValueError as error:
        raise TableError(f"{place}: {error}") from error


def _golds(cell: Any) -> Iterator[str]:
    """Yield the gold answers in a cell: a text or a number, a list of them, or an object with them in its fields."""
    if isinstance(cell, Mapping):
        named = [cell[name] for name in (*GOLD_FIELDS, "aliases") if cell.get(name) is not None]
        if not named:
            raise ValueError(f"gold answers must be in the fields value and aliases, got {shown(cell)}; rename them")
        cell = [each for part in named for each in (part if isinstance(part, list) else [part])]
    for each in cell if isinstance(cell, list) else [cell]:
        if each in (None, "") or each != each:  # data frames write an empty cell as NaN
            continue
        if isinstance(each, bool) or not isinstance(each, (str, int, float)):
            raise ValueError(f"a gold answer must be a text or a number, got {shown(each)}; correct it")
        after = re.findall(r"^####\s*(.+?)\s*$", str(each), re.MULTILINE)  # the answer after a worked solution
        yield extract(str(each), "boxed") or (after[-1] if after else str(each).strip())


def _listed(cell: Any) -> Any:
    """Return the list that a cell of CSV holds as JSON. Return all other cells unchanged."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    try:
        return parse_json(cell)
    except ValueError as error:
        raise ValueError(f"aliases that start with [ must be a JSON list, got {error}; correct it") from error


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
