import numpy as np
import pytest

from apportion.predictors.embeddings.table import EmbeddingTable


def test_rows_stay_where_they_are_and_0_is_minus_0():
    table, x = EmbeddingTable(), np.array([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]], np.float32)
    for place, id in enumerate("abc"):
        table.add([id], x[[place]])
    assert table.rows(table.ids).tolist() == [0, 1, 0] and table.embeddings.tolist() == x[:2].tolist()


def test_another_dimension_is_refused():
    table = EmbeddingTable()
    table.add(["a"], np.ones((1, 3), np.float32))
    with pytest.raises(ValueError, match="must have 3 dimensions as before, got 4; keep one embedder"):
        table.add(["b"], np.ones((1, 4), np.float32))
    assert len(table) == 1
