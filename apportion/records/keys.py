"""Which prompt and which group each row is of, once all rows are there: by ids, by texts, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from apportion.types import Counts, prompt_id

FEW_FALLS, LEAST_ROWS = 20, 16
"""The most times that the step goes back in a file of several runs, and the least mean rows in between."""


@dataclass(frozen=True, eq=False)
class Codes:
    """What names the prompt of each row [R]: codes of texts, -1 for none, and the texts themselves.

    Each is None if no column says it. ``group`` is 0 in each row if no column names groups.
    """

    step: Counts
    group: Counts
    id: Counts | None
    text: Counts | None
    gold: Counts | None
    ids: Sequence[str]
    texts: Sequence[str]
    golds: Sequence[str]


@dataclass(frozen=True, eq=False)
class Keys:
    """The prompt of each row [R] as a place in ``ids`` and ``prompts`` [Q], its group, and what may be otherwise."""

    prompt: Counts
    group: Counts
    ids: list[str]
    prompts: list[str | None]
    doubts: list[str]


def keys_of(codes: Codes) -> Keys:
    """Return which prompt each row is of.

    An id names a prompt, unless it restarts in every batch or differs in every row of a text. Without ids a text names
    a prompt, unless it has several known answers or images. Rows are never torn into groups of one for that.
    """
    if codes.id is None:
        keys = _by_gold(codes) if codes.gold is not None else _by_text(codes, [])
    elif codes.text is None:
        keys = _by_id(codes, codes.id, [])
    else:
        reading, doubts = _id_or_text(codes, codes.id, codes.text)
        keys = _by_id(codes, codes.id, doubts) if reading == "id" else _by_text(codes, doubts)
        if reading == "text, apart":
            keys = replace(keys, group=numbered_pairs(codes.group, codes.id)[1])
    return _with_runs(codes.step, keys)


def _by_id(codes: Codes, prompt: Counts, doubts: list[str]) -> Keys:
    texts: list[str | None] = [None] * len(codes.ids)
    if codes.text is not None:
        rows = np.full(len(codes.ids), -1)
        rows[prompt[::-1]] = codes.text[::-1]
        texts = [None if code < 0 else codes.texts[code] for code in rows]
    return Keys(prompt, codes.group, list(codes.ids), texts, doubts)


def _by_text(codes: Codes, doubts: list[str]) -> Keys:
    assert codes.text is not None
    return Keys(codes.text, codes.group, [prompt_id(text) for text in codes.texts], [*codes.texts], doubts)


def _by_gold(codes: Codes) -> Keys:
    """Return the keys by text, and by known answer where one text has several, unless that tears groups."""
    keys = _by_text(codes, [])
    assert codes.gold is not None
    pairs, own, heads = numbered_pairs(keys.prompt, codes.gold)
    texts_of = keys.prompt[heads]
    several = int((np.bincount(texts_of) > 1).sum())
    if not several:
        return keys
    if _tears(_sizes(codes.step, codes.group, keys.prompt), _sizes(codes.step, codes.group, own)):
        said = f"texts with several known answers: {several:,}; one prompt each, because groups would be torn"
        return replace(keys, doubts=[said])
    seen = np.zeros(len(codes.texts), bool)
    ids = []
    for text, gold in zip(texts_of.tolist(), codes.gold[heads].tolist(), strict=True):
        known = codes.golds[gold] if gold >= 0 else ""
        ids.append(prompt_id(f"{codes.texts[text]}\n{known}") if seen[text] else keys.ids[text])
        seen[text] = True
    said = (
        f"texts with several known answers or images: {several:,}; so there are {pairs:,} prompts, and by text alone "
        f"{len(codes.texts):,}; --column gold= reads texts alone"
    )
    return Keys(own, codes.group, ids, [codes.texts[text] for text in texts_of], [said])


Reading = Literal["id", "text", "text, apart"]
"""What names a prompt: the id, or the text; ``apart`` if rows of different ids are different groups."""


def _id_or_text(codes: Codes, id: Counts, text: Counts) -> tuple[Reading, list[str]]:
    """Return what names the prompt if there are an id and a text, and what may be otherwise."""
    _, _, heads = numbered_pairs(id, text)
    known = text[heads] >= 0
    of_ids = np.bincount(id[heads][known], minlength=len(codes.ids))
    of_texts = np.bincount(text[heads][known], minlength=len(codes.texts))
    if max(of_ids.max(initial=0), of_texts.max(initial=0)) <= 1:
        return "id", []
    own = _sizes(codes.step, codes.group, id)
    if (of_ids > 1).any():
        several = int((of_ids > 1).sum())
        if _restarts(codes.step, id) and not _tears(own, _sizes(codes.step, codes.group, id, text)):
            return "text, apart", [
                f"id is the place in a batch, because {several:,} ids have several texts: a text is a prompt, "
                f"{len(codes.texts):,} in all; by id there are {len(codes.ids):,}; --column prompt= reads ids alone"
            ]
        return "id", [
            f"{several:,} of {len(codes.ids):,} ids have several texts: an id is a prompt; by text there are "
            f"{len(codes.texts):,}; --column id= reads texts alone"
        ]
    if own.max() == 1 and _sizes(codes.step, codes.group, text).max() > 1:
        return "text", [
            f"id differs in every row: a text is a prompt, {len(codes.texts):,} in all; by id no group has two "
            "rollouts; --column prompt= reads ids alone"
        ]
    several = int((of_texts > 1).sum())
    return "id", [
        f"{several:,} texts have several ids: an id is a prompt, {len(codes.ids):,} in all; by text there are "
        f"{len(codes.texts):,}; --column id= reads texts alone"
    ]


def _with_runs(step: Counts, keys: Keys) -> Keys:
    """Return the keys with the groups of several runs apart, if the step goes back a few times in the rows."""
    falls = np.flatnonzero(np.diff(step) < 0)
    if not 0 < len(falls) <= min(FEW_FALLS, len(step) // LEAST_ROWS - 1):
        return keys
    run = np.zeros(len(step), np.int64)
    run[falls + 1] = 1
    run = np.cumsum(run)
    alone = all(len(np.unique(keys.prompt[run == each])) == 1 for each in range(len(falls) + 1))
    again, once = len(_sizes(step, run)), len(np.unique(step))
    if alone or again <= once:
        return keys  # the rows are sorted by prompt, or steps came out of order
    before, after = int(step[falls[0]]), int(step[falls[0] + 1])
    times = f"the step goes back {len(falls)} time{'s' * (len(falls) > 1)}, first from {before} to {after}"
    said = f"{times}: {len(falls) + 1} runs in one, or a resumed one? Their groups are kept apart; split the file"
    return replace(keys, group=numbered_pairs(keys.group, run)[1], doubts=[*keys.doubts, said])


def _restarts(step: Counts, id: Counts) -> bool:
    """Return whether every step has about the same ids."""
    steps, ids = len(np.unique(step)), len(np.unique(id))
    return steps > 1 and len(_sizes(step, id)) >= 0.9 * steps * ids


def _tears(before: Counts, after: Counts) -> bool:
    """Return whether another reading makes groups of one, given the sizes of groups before and after."""
    return bool((after == 1).mean() > (before == 1).mean() + 0.05)


def _sizes(*codes: Counts) -> Counts:
    """Return how many rows have each combination of codes."""
    one = codes[0]
    for other in codes[1:]:
        one = numbered_pairs(one, other)[1]
    return np.unique(one, return_counts=True)[1]


def numbered_pairs(one: Counts, other: Counts) -> tuple[int, Counts, Counts]:
    """Return how many pairs of codes there are, the number of each row's pair by appearance, and the first rows."""
    width = int(other.max(initial=0)) + 2
    _, first, inverse = np.unique(one.astype(np.int64) * width + other + 1, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    order = np.argsort(first)
    rank[order] = np.arange(len(first))
    return len(first), rank[inverse], first[order]
