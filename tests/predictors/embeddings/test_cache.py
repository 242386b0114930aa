from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from apportion.predictors.embeddings.cache import EmbeddingCache, default_cache_dir

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
