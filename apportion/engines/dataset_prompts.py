"""The prompts of a whole data set, read without holding its rows in memory."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from apportion.engines.prompts import digest, prompt_of, text_of
from apportion.types import Prompt


@dataclass(frozen=True)
class DatasetPrompts:
    """The prompts of ``every`` row, the ``distinct`` ones by id, and how many rows differ from an earlier row of an id.

    ``differing`` counts rows with the id of an earlier row and another value in any column.
    """

    every: Sequence[Prompt]
    distinct: Sequence[Prompt]
    differing: int


def read_prompts(dataset: Any, id_column: str | None = None, rate_column: str | None = None) -> DatasetPrompts:
    """Return the prompts of ``dataset``, which has a length and rows by index.

    The first pass reads the columns that make a prompt. A second pass reads whole rows, but only those whose id occurs
    more than once, and keeps a digest of 16 bytes for each id.

    >>> rows = [{"prompt": "6 x 7?", "answer": "42"}, {"prompt": "6 x 7?", "answer": "forty-two"}]
    >>> found = read_prompts(rows)
    >>> len(found.every), len(found.distinct), found.differing
    (2, 1, 1)
    """
    every, distinct = list[Prompt](), dict[str, Prompt]()
    for place, row in enumerate(_narrowed(dataset, id_column, rate_column)):
        whole = row if text_of(row.get("prompt", "")) else dataset[place]
        prompt = prompt_of(whole, id_column, rate_column)
        every.append(prompt)
        distinct.setdefault(prompt.id, prompt)
    differing = 0
    if len(distinct) < len(every):
        counts, first = Counter(prompt.id for prompt in every), dict[str, bytes]()
        repeated = [place for place, prompt in enumerate(every) if counts[prompt.id] > 1]
        for place in repeated:
            content = digest(dataset[place])
            differing += first.setdefault(every[place].id, content) != content
    return DatasetPrompts(every, list(distinct.values()), differing)


def columns_of(dataset: Any) -> list[str]:
    """Return the column names of ``dataset`` if they are known. A user's transform may produce other columns."""
    if isinstance(dataset, Dataset) and dataset.format["type"] == "custom" and len(dataset):
        return list(dataset[0])
    return getattr(dataset, "column_names", None) or []


def _narrowed(dataset: Any, *columns: str | None) -> Iterable[Mapping[str, Any]]:
    """Return the rows with only the columns of a prompt. All columns stay if a user's transform may need them."""
    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
        return (dataset[place] for place in range(len(dataset)))
    wanted = dict.fromkeys(name for name in ("prompt", *columns) if name in dataset.column_names)
    return dataset.select_columns(list(wanted)) if wanted else dataset
