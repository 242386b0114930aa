"""Which prompt and which group each row is of, once all rows are there: by ids, by texts, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    doubts: list[str] = []
    group, by_text = codes.group, codes.id is None
    if codes.id is not None and codes.text is not None:
        by_text, said = _id_or_text(codes)
        doubts += said
        if by_text and said and said[0].startswith("id is"):
            group = numbered_pairs(group, codes.id)[1]
    if not by_text:
        assert codes.id is not None
        prompt, names = codes.id, list(codes.ids)
        texts: list[str | None] = [None] * len(names)
        if codes.text is not None:
            rows = np.full(len(names), -1)
            rows[prompt[::-1]] = codes.text[::-1]
            texts = [None if code < 0 else codes.texts[code] for code in rows]
        return _with_runs(codes.step, Keys(prompt, group, names, texts, doubts))
    assert codes.text is not None
    prompt, names = codes.text, [prompt_id(text) for text in codes.texts]
    texts = list(codes.texts)
    if codes.gold is not None and codes.id is None:
        pairs, own, heads = numbered_pairs(prompt, codes.gold)
        texts_of = prompt[heads]
        several = int((np.bincount(texts_of) > 1).sum())
        if several:
            one, two = _sizes(codes.step, group, prompt), _sizes(codes.step, group, own)
            if _tears(one, two):
                doubts.append(
                    f"texts with several known answers: {several:,}; one prompt each, because groups would be torn"
                )
            else:
                seen = np.zeros(len(names), bool)
                made_ids, made_texts = [], []
                for text, gold in zip(texts_of.tolist(), codes.gold[heads].tolist(), strict=True):
                    known = codes.golds[gold] if gold >= 0 else ""
                    made_ids.append(prompt_id(f"{codes.texts[text]}\n{known}") if seen[text] else names[text])
                    made_texts.append(codes.texts[text])
                    seen[text] = True
                doubts.append(
                    f"texts with several known answers or images: {several:,}; so there are {pairs:,} prompts, and by "
                    f"text alone {len(names):,}; --column gold= reads texts alone"
                )
                prompt, names, texts = own, made_ids, made_texts
    return _with_runs(codes.step, Keys(prompt, group, names, [*texts], doubts))


def _id_or_text(codes: Codes) -> tuple[bool, list[str]]:
    """Return whether the text names the prompt although there is an id, and what may be otherwise."""
    assert codes.id is not None and codes.text is not None
    _, _, heads = numbered_pairs(codes.id, codes.text)
    known = codes.text[heads] >= 0
    of_ids = np.bincount(codes.id[heads][known], minlength=len(codes.ids))
    of_texts = np.bincount(codes.text[heads][known], minlength=len(codes.texts))
    own, other = _sizes(codes.step, codes.group, codes.id), _sizes(codes.step, codes.group, codes.text)
    if (of_ids > 1).any():
        several = int((of_ids > 1).sum())
        both = _sizes(codes.step, codes.group, codes.id, codes.text)
        if _restarts(codes.step, codes.id) and not _tears(own, both):
            return True, [
                f"id is the place in a batch, because {several:,} ids have several texts: a text is a prompt, "
                f"{len(codes.texts):,} in all; by id there are {len(codes.ids):,}; --column prompt= reads ids alone"
            ]
        return False, [
            f"{several:,} of {len(codes.ids):,} ids have several texts: an id is a prompt; by text there are "
            f"{len(codes.texts):,}; --column id= reads texts alone"
        ]
    if (of_texts > 1).any():
        if own.max() == 1 and other.max() > 1:
            return True, [
                f"id differs in every row: a text is a prompt, {len(codes.texts):,} in all; by id no group has two "
                "rollouts; --column prompt= reads ids alone"
            ]
        several = int((of_texts > 1).sum())
        return False, [
            f"{several:,} texts have several ids: an id is a prompt, {len(codes.ids):,} in all; by text there are "
            f"{len(codes.texts):,}; --column id= reads texts alone"
        ]
    return False, []


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
