"""Which prompt and which group each row is of, once all rows are there: by ids, by texts, or by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from apportion.records.rollout_log import RecordError
from apportion.types import Counts, prompt_id

LEAST_ROWS, LARGER = 16, 1.5
"""The least mean rows between two times that the step goes back in a file of several runs, and how much larger than the
others a group is that two of them have."""

LEAST_AGAIN = 3
"""Least mean number of steps that a further run in a file repeats. Rows that came late repeat fewer steps."""

USUAL_SHARE, MOSTLY = 0.9, 0.5
"""The share of groups that have the commonest number of pieces, if all are said to have it; and the commonest size."""

MOST_NAMED = 6
"""Most runs of a file that are named."""

Named = Mapping[str, tuple[Counts, Sequence[str]]]
"""What names prompts, of "id", "prompt" and "gold", or of "group" alone, and what names the "run": the code of each
row's text [R], -1 for none, and the texts."""


@dataclass(frozen=True, eq=False)
class Keys:
    """The prompt of each row [R] as a place in ``ids`` and ``prompts`` [Q], its group, and what may be otherwise.

    Rows of groups come ``piece`` at a time, if that is not 0, and each group has several pieces.
    """

    prompt: Counts
    group: Counts
    ids: Sequence[str]
    prompts: Sequence[str | None]
    doubts: list[str] = field(default_factory=list)
    piece: int = 0


def keys_of(
    step: Counts,
    group: Counts,
    named: Named,
    files: Counts,
    column: str | None = None,
    by_files: bool = False,
    whole: bool = False,
) -> Keys:
    """Return which prompt each row is of. ``group`` is 0 in each row if no column names groups.

    ``files`` are the first rows of files. ``column`` is what the user named as the group: "" for none, so that rows of
    one prompt at one step are one group in any order, or a number of rows, which are a group each. ``by_files`` says
    that runs are those of files, and ``whole`` that each row is a group. Raises RecordError if runs are several.

    An id names a prompt, unless it restarts in every batch or differs in every row of a text. Without ids a text names
    a prompt, unless it has several known answers or images. Rows are never torn into groups of one for that.
    """
    if "group" in named:
        keys = _by_group(step, *named["group"])
    elif "id" not in named:
        keys = _by_text(group, named)
        keys = _by_gold(step, keys, *named["gold"]) if "gold" in named else keys
    elif "prompt" not in named:
        keys = _by_id(group, named)
    else:
        keys = _by_id_or_text(step, group, named, whole)
    if column is None and _sizes(step, keys.prompt).max() > _sizes(step, keys.prompt, keys.group).max() == 1:
        keys.doubts.append(
            "the column of groups differs in every row of a prompt: not read; --column group=COLUMN reads it"
        )
        keys = replace(keys, group=np.zeros_like(keys.group))
    if column == "":
        return keys
    if column is not None and column.isdecimal() and not keys.group.any():
        return replace(keys, group=places_of(numbered(step, keys.prompt)[0]) // int(column))
    keys = _with_runs(step, _by_run(step, keys, *named["run"], by_files) if "run" in named else keys, files)
    return keys if keys.group.any() else _drawn_again(step, keys)


def _by_run(step: Counts, keys: Keys, run: Counts, names: Sequence[str], by_files: bool) -> Keys:
    """Return the keys in which groups of several runs or models are apart, unless that splits groups into single rows.

    Raises RecordError if the runs are of files, and most groups of one are also in another.
    """
    before, after = (_sizes(step, keys.prompt, keys.group, *more) for more in ((), (run,)))
    if by_files and run.max() > run.min():
        kept = np.unique(run)
        listed = ", ".join(names[code] for code in kept[:MOST_NAMED]) + ", ..." * (len(kept) > MOST_NAMED)
        heads = numbered(step, keys.prompt, keys.group, run)[1]
        if len(after) - len(before) > np.bincount(run[heads])[kept].min() / 2:
            raise RecordError(
                f"files must be of one run, got several with the same prompts at the same steps: {listed}; open one, "
                "or join them by --column run="
            )
        if len(_sizes(step, run)) > len(np.unique(step)) and len(before) == len(after):
            keys.doubts.append(
                f"files of one step are one run, whose steps have the prompts of all: {listed}; open one for itself"
            )
    if len(before) == len(after):
        return keys
    if _tears(before, after):
        keys.doubts.append("the run or model differs within groups of one prompt and step: not read")
        return keys
    keys.doubts.append(
        f"rows of {len(np.unique(run))} runs or models: each has groups of its own, {len(after):,} in all; --column "
        f"run= joins them to {len(before):,}"
    )
    return replace(keys, group=numbered(keys.group, run)[0])


def _by_id(group: Counts, named: Named) -> Keys:
    prompt, ids = named["id"]
    prompts: list[str | None] = [None] * len(ids)
    if "prompt" in named:
        codes, texts = named["prompt"]
        first = np.full(len(ids), -1)
        first[prompt[::-1]] = codes[::-1]
        prompts = [None if code < 0 else texts[code] for code in first]
    return Keys(prompt, group, ids, prompts)


def _by_text(group: Counts, named: Named) -> Keys:
    codes, texts = named["prompt"]
    return Keys(codes, group, [prompt_id(text) for text in texts], texts)


def _by_group(step: Counts, group: Counts, texts: Sequence[str]) -> Keys:
    own, heads = numbered(step, group)
    ids = [f"{step[head]}/{texts[group[head]]}" for head in heads]
    said = "no column names prompts: each group is one of its own, which comes once; --column id=COLUMN names one"
    return Keys(own, group, ids, [None] * len(ids), [said])


def _by_gold(step: Counts, keys: Keys, gold: Counts, golds: Sequence[str]) -> Keys:
    """Return the keys by text, and by known answer if a text has several answers, unless that splits groups."""
    own, heads = numbered(keys.prompt, gold)
    of = keys.prompt[heads]
    several = int((np.bincount(of) > 1).sum())
    if not several:
        return keys
    if _tears(_sizes(step, keys.group, keys.prompt), _sizes(step, keys.group, own)):
        keys.doubts.append(
            f"texts with several known answers: {several:,}; one prompt each, because groups would be torn"
        )
        return keys
    ids: list[str] = []
    seen: set[int] = set()
    for text, code in zip(of.tolist(), gold[heads].tolist(), strict=True):
        known = golds[code] if code >= 0 else ""
        ids.append(prompt_id(f"{keys.prompts[text]}\n{known}") if text in seen else keys.ids[text])
        seen.add(text)
    said = (
        f"texts with several known answers or images: {several:,}; so there are {len(heads):,} prompts, and by text "
        f"alone {len(keys.ids):,}; --column gold= reads texts alone"
    )
    return Keys(own, keys.group, ids, [keys.prompts[text] for text in of], [said])


def _by_id_or_text(step: Counts, group: Counts, named: Named, whole: bool) -> Keys:
    """Return the keys by id or by text, if there are both, and the doubts."""
    (id, ids), (text, texts) = named["id"], named["prompt"]
    heads = numbered(id, text)[1]
    heads = heads[text[heads] >= 0]
    of_ids, of_texts = np.bincount(id[heads]) > 1, np.bincount(text[heads]) > 1
    keys, own = _by_id(group, named), _sizes(step, group, id)
    if several := int(of_ids.sum()):
        if _restarts(step, id) and not _tears(own, _sizes(step, group, id, text)):
            keys = _by_text(numbered(group, id)[0], named)  # rows of different ids are different groups
            said = (
                f"id is the place in a batch, because {several:,} ids have several texts: a text is a prompt, "
                f"{len(texts):,} in all; by id there are {len(ids):,}; --column prompt= reads ids alone"
            )
        else:
            said = (
                f"{several:,} of {len(ids):,} ids have several texts: an id is a prompt; by text there are "
                f"{len(texts):,}; --column id= reads texts alone"
            )
    elif whole or not of_texts.any():
        return keys
    elif own.max() == 1 and _sizes(step, group, text).max() > 1:
        keys = _by_text(group, named)
        said = (
            f"id differs in every row: a text is a prompt, {len(texts):,} in all; by id no group has two "
            "rollouts; --column prompt= reads ids alone"
        )
    else:
        said = (
            f"{int(of_texts.sum()):,} texts have several ids: an id is a prompt, {len(ids):,} in all; by text there "
            f"are {len(texts):,}; --column id= reads texts alone"
        )
    keys.doubts.append(said)
    return keys


def _with_runs(step: Counts, keys: Keys, files: Counts) -> Keys:
    """Return the keys in which groups of several runs are apart, if the step goes back in the rows.

    Rows that came late, and processes that each logged a part of every group, are one run. Of several runs a group
    that both have is larger than the others. If all have all groups, that cannot be seen: then files that were given
    together are one run, and a file with all steps again is several.
    """
    one_step = step.min() == step.max()
    files = np.unique(files[(files > 0) & (files < len(step))])
    falls = files if one_step else np.flatnonzero(np.diff(step) < 0) + 1
    if not len(falls) or len(step) < LEAST_ROWS * (len(falls) + 1):
        return keys
    run = np.zeros(len(step), np.int64)
    run[falls] = 1
    run = np.cumsum(run)
    of = numbered(step, keys.prompt, keys.group)[0]
    part, heads = numbered(of, run)
    whole, parts = np.bincount(of), np.bincount(part)
    again = np.bincount(of[heads]) > 1
    of_files = {*falls.tolist()} <= {*files.tolist()}
    times = f"the step goes back {len(falls)} time{'s' * (len(falls) > 1)}, first from {step[falls[0] - 1]} to "
    times = f"{len(files) + 1} files of one step" if one_step else f"{times}{step[falls[0]]}"
    if not again.any():
        own, firsts = numbered(step, run)
        often = len(firsts) - len(np.unique(step)) >= LEAST_AGAIN * len(falls)
        if not often or np.median(np.bincount(own[heads])) == 1 or of_files:
            return keys  # late rows, rows sorted by prompt, or one file a process
        keys.doubts.append(
            f"{times}, to other prompts: one run, whose steps have all of them; if these are several, split the file"
        )
        return keys
    if not again.all():
        if whole[again].mean() < LARGER * whole[~again].mean():
            return keys  # some rows came late
    elif np.median(parts) == 1 or of_files:
        keys.doubts.append(
            f"{times}: rows of one prompt at one step are one group; if these are several runs, read them apart"
        )
        return keys
    elif _usual(parts) < _usual(whole):
        return keys
    keys.doubts.append(
        f"{times}: {len(falls) + 1} runs in one, or a resumed one? Their groups are kept apart; split the file, or "
        "--column group= joins them"
    )
    return replace(keys, group=numbered(keys.group, run)[0])


def _drawn_again(step: Counts, keys: Keys) -> Keys:
    """Return the keys in which repeated draws of a prompt in a step are groups of their own.

    Most groups have one size and one piece, that is, rows that follow each other. A larger group in several pieces,
    each of that size or a multiple, is several. If all groups have several pieces, that is said, and they stay.
    """
    of = numbered(step, keys.prompt)[0]
    heads = np.flatnonzero(np.r_[True, np.diff(of) != 0])
    lengths, pieces, sizes = np.diff(np.r_[heads, len(of)]), np.bincount(of[heads]), np.bincount(of)
    size, length, times = (int(np.bincount(each).argmax()) for each in (sizes, lengths, pieces))
    whole = np.bincount(of[heads], lengths % size) == 0
    again = whole & (sizes > size) & (pieces > 1)
    if size > 1 and again.any() and (whole & (sizes == size)).mean() >= MOSTLY and whole.mean() >= USUAL_SHARE:
        group = np.where((whole & (sizes > size))[of], places_of(of) // size, 0)
        keys.doubts.append(
            f"{int(again.sum()):,} prompts were drawn several times in a step, because their rows come {size} at a "
            f"time: groups of {size}; --column group= joins those of a step"
        )
        return replace(keys, group=group)
    if min(length, times) == 1 or len(pieces) < LEAST_ROWS or min(_usual(lengths), _usual(pieces)) < USUAL_SHARE:
        return keys
    return replace(keys, piece=length)


def places_of(numbers: Counts) -> Counts:
    """Return each row's index among the rows with its number, from 0."""
    order = np.argsort(numbers, kind="stable")
    own = numbers[order]
    places = np.empty_like(order)
    places[order] = np.arange(len(own)) - np.searchsorted(own, own)
    return places


def _usual(sizes: Counts) -> float:
    """Return the share of groups that have the commonest size."""
    return float(np.bincount(sizes).max() / len(sizes))


def _restarts(step: Counts, id: Counts) -> bool:
    """Return whether every step has about the same ids, so that ids restart."""
    steps, ids = len(np.unique(step)), len(np.unique(id))
    return steps > 1 and len(_sizes(step, id)) >= 0.9 * steps * ids


def _tears(before: Counts, after: Counts) -> bool:
    """Return whether a reading splits groups into single rows, given the group sizes before and after."""
    return bool((after == 1).mean() > (before == 1).mean() + 0.05)


def _sizes(*codes: Counts) -> Counts:
    """Return how many rows have each combination of codes."""
    return np.bincount(numbered(*codes)[0])


def numbered(*codes: Counts) -> tuple[Counts, Counts]:
    """Number the combinations of codes in order of appearance: return each row's number, and each number's first row.

    The codes after the first array are at least -1.
    """
    number, heads = by_appearance(codes[0])
    for code in codes[1:]:
        number, heads = by_appearance(number * (int(code.max(initial=0)) + 2) + code + 1)
    return number, heads


def by_appearance(values: Counts) -> tuple[Counts, Counts]:
    """Return each row's number, by the first appearance of its value, and the first row of each value."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    heads = np.sort(first)
    return np.searchsorted(heads, first)[inverse], heads
