"""verl's rollout dumps. Some trainers add ``uid``, the key of a row: sample, rollout and output in one text."""

from __future__ import annotations

import re

import numpy as np

from apportion.records.importing.blocks import Block

_KEY = re.compile(r"(.+)_[0-9]+_[0-9]+", re.DOTALL)


def with_groups(block: Block) -> Block:
    """Return the block with the sample of each ``uid`` as its group, so that a repeated prompt has several groups."""
    if "group" not in block.texts:
        return block
    keys, codes = block.texts["group"]
    samples = [match[1] if (match := _KEY.fullmatch(key)) else key for key in keys]
    known: dict[str, int] = {}
    places = np.asarray([known.setdefault(sample, len(known)) for sample in samples] + [-1])
    return Block(block.rows, block.numbers, {**block.texts, "group": (list(known), places[codes])})
