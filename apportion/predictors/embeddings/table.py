"""A growing table of distinct embeddings, and the row of each prompt in it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from apportion.predictors.embeddings.embedders import Embeddings

Rows = NDArray[np.int64]


@dataclass
class EmbeddingTable:
    """A table [Q, d], float32, with one row per distinct embedding; prompts with equal embeddings share a row.

    Rows are never moved or removed. The memory grows by half when it is full.

    >>> table = EmbeddingTable()
    >>> table.add(["a", "b", "c"], np.array([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]], np.float32))
    >>> table.rows(["c", "b"]).tolist(), len(table)
    ([0, 1], 2)
    """

    _row: dict[str, int] = field(default_factory=dict)
    _digests: dict[bytes, int] = field(default_factory=dict)
    _memory: Embeddings = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, id: str) -> bool:
        return id in self._row

    @property
    def embeddings(self) -> Embeddings:
        """The distinct embeddings [Q, d]; a view that must not be written to."""
        return self._memory[: len(self)]

    @property
    def ids(self) -> list[str]:
        """Every prompt id, in order of arrival."""
        return list(self._row)

    def rows(self, ids: Sequence[str]) -> Rows:
        """Return the row of each prompt, [P]. Raise KeyError for an unknown one."""
        return np.array([self._row[id] for id in ids], np.int64)

    def add(self, ids: Sequence[str], embeddings: Embeddings) -> None:
        """Add prompts with their embeddings [P, d]. A known id keeps its own. Raise ValueError for another d."""
        if not ids:
            return
        if len(self) and embeddings.shape[1] != self._memory.shape[1]:
            raise ValueError(
                f"embeddings must have {self._memory.shape[1]} dimensions as before, got {embeddings.shape[1]}; "
                "keep one embedder, or start from an empty state"
            )
        first, capacity = len(self), len(self._memory)
        new: list[int] = []
        contiguous = np.ascontiguousarray(embeddings + np.float32(0))
        for position, (id, embedding) in enumerate(zip(ids, contiguous, strict=True)):
            if id in self._row:
                continue
            digest = hashlib.blake2b(embedding.tobytes(), digest_size=16).digest()
            if digest not in self._digests:
                self._digests[digest] = len(self._digests)
                new.append(position)
            self._row[id] = self._digests[digest]
        if len(self) > capacity:
            memory = np.empty((max(len(self), capacity * 3 // 2), embeddings.shape[1]), np.float32)
            memory[:first] = self._memory[:first] if first else 0
            self._memory = memory
        self._memory[first : len(self)] = embeddings[new]

    def sample(self, size: int) -> Rows:
        """Return at most ``size`` rows, chosen by content hash, so the order of arrival does not matter."""
        chosen = sorted(self._digests)[:size]
        return np.array([self._digests[digest] for digest in chosen], np.int64)
