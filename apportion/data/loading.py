"""Load the questions of ``Data`` from a file or the hub: merge repeated rows, shuffle, cut."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

from apportion.data.named import NamedSet
from apportion.data.source import Data
from apportion.questions import COLUMNS, Question, make_question, make_questions, refuse_duplicate_ids
from apportion.rows import Rows, TableError, row_location
from apportion.tables import read_rows
from apportion.types import prompt_id
from apportion.untrusted import shown

ROWS_AT_ONCE = 1000
"""Rows of the hub that are converted together."""


@dataclass(frozen=True)
class Loaded:
    """The loaded questions, and counts of the other rows of ``source``.

    Of its ``rows``, ``repeated`` have a prompt of an earlier row. ``contradictory`` prompts were dropped, because their
    rows disagree about the answer. The remaining questions were cut to the limit.
    """

    questions: tuple[Question, ...]
    source: str
    rows: int
    repeated: int = 0
    contradictory: int = 0

    @property
    def available(self) -> int:
        """Number of questions before the cut."""
        return self.rows - self.repeated - self.contradictory


def load_questions(data: Data) -> list[Question]:
    """Return the questions of ``data``, shuffled and cut. Raise TableError if they cannot be loaded."""
    return list(load(data).questions)


def load(data: Data) -> Loaded:
    """Load the questions of ``data`` with counts of the other rows. Raise TableError if they cannot be loaded."""
    loaded = _load_other(data) if data.named_set is None else _load_named(data, data.named_set)
    questions = loaded.questions
    if not questions:
        raise TableError(f"{loaded.source} must have questions, got none in {loaded.rows} rows; give it some")
    for question in questions:
        if not isinstance(question.prompt, str):
            raise TableError(
                f"a prompt must be a text, got chat messages for {shown(question.id)}; write the question as a text, "
                "which the template puts into messages"
            )
    if data.seed is not None:
        questions = tuple(sorted(questions, key=lambda question: prompt_id(question.id, dataset=str(data.seed))))
    return replace(loaded, questions=questions[: data.limit])


def describe(data: Data, loaded: Loaded) -> str:
    """Describe what was loaded in one paragraph, for the plan that is printed before a job starts."""
    taken, template = len(loaded.questions), data.chosen_template
    length = median(len(template.text(question)) for question in loaded.questions)
    sentences = [f"{taken:,} questions from {loaded.source}, {loaded.rows:,} rows"]
    if loaded.repeated:
        sentences.append(f"{loaded.repeated:,} rows repeat a prompt")
    if loaded.contradictory:
        sentences.append(f"{loaded.contradictory:,} prompts are left out because their rows disagree about the answer")
    if data.seed is not None:
        sentences.append(f"Shuffled with seed {data.seed}")
    if taken < loaded.available:
        sentences.append(f"Cut to {taken:,} of {loaded.available:,}")
    if data.rate_column is not None:
        known = sum(question.rate is not None for question in loaded.questions)
        sentences.append(f"{known:,} have a known rate")
    sentences.append(f"The template is {template.name}; the median prompt has {length:,.0f} characters")
    return f"{'. '.join(sentences)}."


def _load_named(data: Data, named: NamedSet) -> Loaded:
    """Load row by row, because the published file of DAPO has a hundred times the rows that are kept."""
    columns = data.prompt_column or named.prompt_column, data.answer_column or named.answer_column
    source, known, rows = _source(data), set[str](), 0
    questions: list[Question] = []
    places: list[str] = []
    rate = [] if data.rate_column is None else [data.rate_column]
    for rows, (line, row) in enumerate(_rows(data, [*columns, *named.others, *rate]), 1):
        where = row_location(Path(source), line)
        if rows == 1 and (missing := [column for column in (*columns, *rate) if column not in row]):
            raise TableError(
                f"{source} must have a column {missing[0]}, got {', '.join(row)}; say which it is with prompt_column, "
                "answer_column and rate_column, or give the path without the name"
            )
        try:
            asked, gold = named.layout(row, *columns)
        except ValueError as error:
            raise TableError(f"{where}: {error}") from error
        content = f"{asked}\0{gold}"
        if named.repeats and content in known:
            continue
        known.add(content)
        questions.append(make_question(where, None, asked, gold, *(row[column] for column in rate)))
        places.append(where)
    if not named.repeats:
        refuse_duplicate_ids(questions, places)
        return Loaded(tuple(questions), source, rows)
    golds: dict[str, set[str | None]] = {}
    for question in questions:
        golds.setdefault(question.id, set()).add(question.gold)
    agreed = {question.id: question for question in questions if len(golds[question.id]) == 1}
    return Loaded(tuple(agreed.values()), source, rows, rows - len(golds), len(golds) - len(agreed))


def _load_other(data: Data) -> Loaded:
    """Load a file or a data set of the hub that is not a named set."""
    named = data.prompt_column, data.answer_column, data.rate_column
    rows = list(_rows(data, [*COLUMNS, *filter(None, named)]))
    return Loaded(tuple(make_questions(Path(_source(data)), rows, *named)), _source(data), len(rows))


def _rows(data: Data, columns: Sequence[str]) -> Rows:
    """Return the rows of a file or of the hub, with those of ``columns`` that it has. Rows of the hub count from 1.

    Raises TableError, for the hub also if ``datasets``, the network, the data set, its split or access is missing.
    """
    if data.path is not None:
        return read_rows(data.path, columns)
    hub, subset, split = _hub_location(data)
    try:
        from datasets import Dataset, load_dataset  # noqa: PLC0415 - an optional extra
        from datasets.exceptions import DatasetsError  # noqa: PLC0415
    except ImportError as error:
        raise TableError(
            f"loading {hub} needs datasets, which cannot be imported; pip install 'apportion[trl]', or give a file "
            "with the same columns as path"
        ) from error
    try:
        found = load_dataset(hub, subset, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise TableError(
            f"{hub} must be a data set that can be loaded, got {type(error).__name__}: {reason}; check its name, the "
            "network and your access, or give a file with the same columns as path"
        ) from error
    if not isinstance(found, Dataset) and len(found) == 1:
        (found,) = found.values()
    if not isinstance(found, Dataset):
        raise TableError(f"{hub} must have one split, got {', '.join(map(str, found))}; set split to one of them")
    names = found.column_names
    kept = found.select_columns([column for column in columns if column in names] or names[:1])
    batches = kept.with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
    return enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)


def _source(data: Data) -> str:
    """Return the name of the source, for errors and the description: the file, or the id with subset and split."""
    if data.path is not None:
        return str(data.path)
    hub, *parts = _hub_location(data)
    named = ", ".join(filter(None, parts))
    return f"{hub} ({named})" if named else hub


def _hub_location(data: Data) -> tuple[str, str | None, str | None]:
    """Return id, subset and split on the hub. A named set gives those that the user does not."""
    if data.named_set is not None:
        return data.named_set.hub, data.subset or data.named_set.subset, data.split or data.named_set.split
    assert data.hub is not None
    return data.hub, data.subset, data.split
