"""A growing table of distinct embeddings, and which prompt has which."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Embeddings = NDArray[np.float32]


@dataclass
class EmbeddingTable:
    """One row for each distinct embedding, [Q, d] float32; prompts with equal embeddings share one.

    Rows are never moved or removed. Appending is amortised: the memory grows by half when it is full.

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
        """The distinct embeddings [Q, d]; a view, not to be written to."""
        return self._memory[: len(self)]

    @property
    def ids(self) -> list[str]:
        """Every prompt id, in order of arrival."""
        return list(self._row)

    def rows(self, ids: Sequence[str]) -> Rows:
        """The row of each prompt, [P]; a KeyError for an unknown one."""
        return np.array([self._row[id] for id in ids], np.int64)

    def add(self, ids: Sequence[str], embeddings: Embeddings) -> None:
        """Appends prompts with their embeddings [P, d]; a known id keeps its own. Raises ValueError for another d."""
        if not ids:
            return
        if len(self) and embeddings.shape[1] != self._memory.shape[1]:
            raise ValueError(
                f"embeddings must have {self._memory.shape[1]} dimensions as before, got {embeddings.shape[1]}; "
                "keep one embedder, or start from an empty state"
            )
        first = len(self)
        new: list[int] = []
        for position, (id, embedding) in enumerate(
            zip(ids, np.ascontiguousarray(embeddings + np.float32(0)), strict=True)
        ):
            if id in self._row:
                continue
            digest = hashlib.blake2b(embedding.tobytes(), digest_size=16).digest()
            if digest not in self._digests:
                self._digests[digest] = len(self._digests)
                new.append(position)
            self._row[id] = self._digests[digest]
        self._reserve(len(self), embeddings.shape[1])
        self._memory[first : len(self)] = embeddings[new]

    def sample(self, size: int) -> Rows:
        """At most ``size`` rows, chosen by content hash: the same embeddings whatever the order in which they came."""
        chosen = sorted(self._digests)[:size]
        return np.array([self._digests[digest] for digest in chosen], np.int64)

    def _reserve(self, rows: int, dimensions: int) -> None:
        if rows > len(self._memory):
            memory = np.empty((max(rows, len(self._memory) * 3 // 2), dimensions), np.float32)
            memory[: len(self._memory)] = self._memory if len(self._memory) else 0
            self._memory = memory
