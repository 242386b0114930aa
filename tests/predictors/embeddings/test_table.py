import numpy as np
import pytest

from apportion.predictors.embeddings.table import EmbeddingTable


def test_rows_stay_where_they_are_however_many_come():
    rng, table = np.random.default_rng(0), EmbeddingTable()
    everything = rng.integers(0, 3, size=(400, 5)).astype(np.float32)
    ids = [f"id {i}" for i in range(400)]
    for start in range(0, 400, 7):
        table.add(ids[start : start + 7], everything[start : start + 7])
    np.testing.assert_array_equal(table.embeddings[table.rows(ids)], everything)
    assert len(table) == len(np.unique(everything, axis=0))
    assert table.ids == ids
    table.add(["zero", "-zero"], np.array([[0.0] * 5, [-0.0] * 5], np.float32))
    assert len(set(table.rows(["zero", "-zero"]).tolist())) == 1


def test_another_dimension_is_refused():
    table = EmbeddingTable()
    table.add(["a"], np.ones((1, 3), np.float32))
    with pytest.raises(ValueError, match="must have 3 dimensions as before, got 4; keep one embedder"):
        table.add(["b"], np.ones((1, 4), np.float32))
    assert len(table) == 1
