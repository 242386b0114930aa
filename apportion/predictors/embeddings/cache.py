"""A cache of embeddings on disk: one SQLite file per model, shared by all processes of a machine."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOREIGN = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")
"""Names of SQLite's errors for a file that is damaged or no cache."""
LOCK_TIMEOUT_SECONDS = 60.0
KEYS_A_QUERY = 512
"""Values in one query. SQLite accepts at least 999."""


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/apportion/embeddings``, or else ``~/.cache/apportion/embeddings``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion" / "embeddings"


class EmbeddingCacheError(ValueError):
    """The file of a cache holds something else, or is damaged. The message is one line: file, problem, remedy."""


@dataclass(frozen=True)
class EmbeddingCache:
    """Float32 embeddings by content hash of their text, in the SQLite file ``path``, which the first use creates.

    Each call opens the file anew, so the cache survives forks, and several processes may read and write at once. A
    ``write`` is one transaction, so a kill loses at most that one. The journal mode is SQLite's default, because
    network file systems do not support WAL.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = EmbeddingCache(Path(folder) / "model.sqlite3")
    ...     cache.write({"a": np.array([1.0, 2.0], np.float32)})
    ...     cache.read(["a", "b"])
    {'a': array([1., 2.], dtype=float32)}
    """

    path: Path

    def read(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the embedding [d] of each text that is in the cache. Raises EmbeddingCacheError for another file."""
        wanted, found = {_key(text): text for text in texts}, dict[str, NDArray[np.float32]]()
        keys = list(wanted)
        with self._open() as connection:
            for start in range(0, len(keys), KEYS_A_QUERY):
                some = keys[start : start + KEYS_A_QUERY]
                query = f"SELECT key, vector FROM embeddings WHERE key IN ({', '.join('?' * len(some))})"
                for key, vector in connection.execute(query, some):
                    found[wanted[key]] = self._vector(vector)
        if len({len(vector) for vector in found.values()}) > 1:
            raise self._error("vectors of several lengths")
        return found

    def write(self, embeddings: Mapping[str, NDArray[np.float32]]) -> None:
        """Add embeddings [d] by text, all or none. A text that is already in the cache keeps its embedding."""
        rows = [(_key(text), np.asarray(vector, "<f4").tobytes()) for text, vector in embeddings.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR IGNORE INTO embeddings VALUES (?, ?)", rows)
            connection.commit()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_SECONDS)) as connection:
            try:
                if connection.execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone():
                    raise self._error("a database with SQL to run")
                connection.execute("CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
                yield connection
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorname", None) not in FOREIGN:
                    raise
                raise self._error(f"another ({error})") from error

    def _vector(self, content: object) -> NDArray[np.float32]:
        if not isinstance(content, bytes) or not content or len(content) % 4:
            raise self._error("a value that is not a vector")
        vector = np.frombuffer(content, "<f4").astype(np.float32)
        if not np.isfinite(vector).all():
            raise self._error("a vector that is not finite")
        return vector

    def _error(self, problem: str) -> EmbeddingCacheError:
        return EmbeddingCacheError(
            f"{self.path}: the file must be a cache of embeddings, got {problem}; delete it, and texts are embedded "
            "again"
        )


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
