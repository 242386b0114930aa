import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from apportion.predictors.embeddings.cache import EmbeddingCache, EmbeddingCacheError, default_cache_dir

WRITER = """
import sys, numpy as np
from pathlib import Path
from apportion.predictors.embeddings.cache import EmbeddingCache
cache, offset = EmbeddingCache(Path(sys.argv[1])), int(sys.argv[2])
for start in range(offset, offset + int(sys.argv[3]), 10):
    cache.write({f"text {i}": np.full(8, i, np.float32) for i in range(start, start + 10)})
"""


def test_processes_write_at_once_and_a_kill_loses_at_most_one_write(tmp_path):
    path = tmp_path / "deep" / "model.sqlite3"
    ending, killed = (
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), offset, count])
        for offset, count in (("0", "300"), ("150", "1000000"))
    )
    assert ending.wait(timeout=120) == 0
    cache = EmbeddingCache(path)
    while not cache.read(["text 300"]):
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    found = cache.read([f"text {i}" for i in range(5000)])
    assert len(found) > 300 and len(found) % 10 == 0
    assert all((vector == int(text.split()[1])).all() for text, vector in found.items())
    cache.write({"and on": np.ones(8, np.float32)})


def test_the_first_embedding_of_a_text_stays_and_is_writable(tmp_path):
    cache = EmbeddingCache(tmp_path / "model.sqlite3")
    cache.write({})
    cache.write({"a": np.ones(2, np.float32)})
    cache.write({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})
    found = cache.read(["a", "b"])["a"]
    assert found.tolist() == [1.0, 1.0] and found.flags.writeable and cache.read([]) == {}


def test_the_default_folder_follows_xdg(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/apportion/embeddings")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "apportion" / "embeddings"


def in_sqlite(path, sql, *values):
    with sqlite3.connect(path) as connection:
        connection.execute(sql, values) if values else connection.executescript(sql)
    connection.close()


VECTORS = (b"", b"abc", "text", 7, np.full(2, np.nan, "<f4").tobytes(), bytes(8))
FOREIGN = [b"text", b"\x80\x04" + bytes(600), b"SQLite format 3\0" + b"x" * 600]
OTHERS = [
    "CREATE TABLE embeddings (other TEXT)",
    "CREATE VIEW embeddings AS SELECT 1 AS key, 2 AS vector",
    "CREATE TABLE t (a); CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END",
]


@pytest.mark.parametrize("content", [*FOREIGN, *OTHERS, *((vector,) for vector in VECTORS)])
def test_a_file_database_or_vector_of_something_else_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "model.sqlite3"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        in_sqlite(path, content)
    else:
        EmbeddingCache(path).write({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})
        in_sqlite(path, "UPDATE embeddings SET vector = ? WHERE key = (SELECT min(key) FROM embeddings)", *content)
    with pytest.raises(EmbeddingCacheError) as caught:
        EmbeddingCache(path).read(["a", "b"])
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and said.endswith("; delete it, and texts are embedded again")
    assert "\n" not in said
