"""A growing table of distinct embeddings, and the row of each prompt in it."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apportion.predictors.embeddings.embedders import Embeddings

Rows = NDArray[np.int64]


class EmbeddingTable:
    """A table [Q, d], float32, with one row per distinct embedding; prompts with equal embeddings share a row.

    Rows are never moved or removed.

    >>> table = EmbeddingTable()
    >>> table.add(["a", "b", "c"], np.array([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]], np.float32))
    >>> table.rows(["c", "b"]).tolist(), len(table)
    ([0, 1], 2)
    """

    embeddings: Embeddings = np.empty((0, 0), np.float32)
    """The distinct embeddings [Q, d], which must not be written to."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._digests: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, id: str) -> bool:
        return id in self._row

    @property
    def ids(self) -> list[str]:
        """Every prompt id, in order of arrival."""
        return list(self._row)

    def rows(self, ids: Sequence[str]) -> Rows:
        """Return the row of each prompt, [P]. Raise KeyError for an unknown one."""
        return np.array([self._row[id] for id in ids], np.int64)

    def add(self, ids: Sequence[str], embeddings: Embeddings) -> None:
        """Add new prompts with their embeddings [P, d], P at least 1. Raise ValueError for another d."""
        dimensions = embeddings.shape[1]
        if len(self) and dimensions != self.embeddings.shape[1]:
            raise ValueError(
                f"embeddings must have {self.embeddings.shape[1]} dimensions as before, got {dimensions}; "
                "keep one embedder, or start from an empty state"
            )
        new = []
        for position, embedding in enumerate(embeddings + np.float32(0)):  # adding 0 turns -0 into 0
            digest = hashlib.blake2b(embedding.tobytes(), digest_size=16).digest()
            if digest not in self._digests:
                new.append(position)
            self._row[ids[position]] = self._digests.setdefault(digest, len(self._digests))
        self.embeddings = np.concatenate([self.embeddings.reshape(-1, dimensions), embeddings[new]])

    def sample(self, size: int) -> Rows:
        """Return at most ``size`` rows, chosen by content hash, so the order of arrival does not matter."""
        return np.array([row for _, row in sorted(self._digests.items())[:size]], np.int64)
