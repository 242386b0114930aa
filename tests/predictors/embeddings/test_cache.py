from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from apportion.predictors.embeddings.cache import EmbeddingCache, EmbeddingCacheError, default_cache_dir

WRITER = """
import sys, numpy as np
from pathlib import Path
from apportion.predictors.embeddings.cache import EmbeddingCache
cache, offset = EmbeddingCache(Path(sys.argv[1])), int(sys.argv[2])
for start in range(offset, offset + 300, 10):
    cache.write({f"text {i}": np.full(8, i, np.float32) for i in range(start, start + 10)})
"""


def test_two_processes_write_at_once(tmp_path: Path):
    path = tmp_path / "deep" / "model.sqlite3"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), offset]) for offset in ("0", "150")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    found = EmbeddingCache(path).read([f"text {i}" for i in range(500)])
    assert len(found) == 450
    assert all((vector == int(text.split()[1])).all() for text, vector in found.items())


def test_a_kill_loses_at_most_one_write(tmp_path: Path):
    path = tmp_path / "model.sqlite3"
    writer = subprocess.Popen([sys.executable, "-c", WRITER.replace("300", "10**6"), str(path), "0"])
    cache, texts = EmbeddingCache(path), [f"text {i}" for i in range(5000)]
    deadline = time.monotonic() + 60
    while len(before := cache.read(texts)) < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.kill()
    writer.wait()
    after = cache.read(texts)
    assert 50 <= len(before) <= len(after)
    assert len(after) % 10 == 0
    cache.write({"and on": np.ones(8, np.float32)})


def test_the_first_embedding_of_a_text_stays(tmp_path: Path):
    cache = EmbeddingCache(tmp_path / "model.sqlite3")
    cache.write({"a": np.ones(2, np.float32)})
    cache.write({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})
    assert cache.read(["a", "b"])["a"].tolist() == [1.0, 1.0]


def test_embeddings_read_from_the_cache_are_writable(tmp_path: Path):
    cache = EmbeddingCache(tmp_path / "model.sqlite3")
    cache.write({"a": np.ones(2, np.float32)})
    assert cache.read(["a"])["a"].flags.writeable


def test_no_texts(tmp_path: Path):
    cache = EmbeddingCache(tmp_path / "model.sqlite3")
    cache.write({})
    assert cache.read([]) == {}


def test_the_default_folder_follows_xdg(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/apportion/embeddings")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "apportion" / "embeddings"


@pytest.mark.parametrize("content", [b"text", b"\x80\x04" + bytes(600), b"SQLite format 3\0" + b"x" * 600])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "model.sqlite3"
    path.write_bytes(content)
    with pytest.raises(EmbeddingCacheError) as caught:
        EmbeddingCache(path).read(["a"])
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and said.endswith("; delete it, and texts are embedded again")
    assert "\n" not in said


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE embeddings (other TEXT)",
        "CREATE VIEW embeddings AS SELECT 1 AS key, 2 AS vector",
        "CREATE TABLE t (a); CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END",
    ],
)
def test_a_database_of_something_else_is_refused(tmp_path: Path, sql: str):
    with sqlite3.connect(tmp_path / "model.sqlite3") as connection:
        connection.executescript(sql)
    connection.close()
    with pytest.raises(EmbeddingCacheError, match="delete it"):
        EmbeddingCache(tmp_path / "model.sqlite3").read(["a"])


@pytest.mark.parametrize("vector", [b"", b"abc", "text", 7, np.full(2, np.nan, "<f4").tobytes(), bytes(8)])
def test_a_vector_that_is_none_of_the_models_is_refused(tmp_path: Path, vector: object):
    cache = EmbeddingCache(tmp_path / "model.sqlite3")
    cache.write({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})
    with sqlite3.connect(cache.path) as connection:
        (key,) = connection.execute("SELECT key FROM embeddings LIMIT 1").fetchone()
        connection.execute("UPDATE embeddings SET vector = ? WHERE key = ?", (vector, key))
    connection.close()
    with pytest.raises(EmbeddingCacheError, match="delete it"):
        cache.read(["a", "b"])
