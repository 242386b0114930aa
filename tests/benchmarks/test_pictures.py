"""Tests of the pictures that are drawn from committed tables."""

import re

from benchmarks import pictures
from tests.test_docs import PAGES


def test_every_picture_of_the_documents_is_drawn_from_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    pictures.main()
    shown = {name for page in PAGES for name in re.findall(r"pictures/(\w+\.png)\)", page.read_text())}
    assert shown - {"report.png"} == {path.name for path in tmp_path.iterdir()}
