"""The page about the architecture and its picture show the rooms, files and imports that the source has."""

import re

from tests.architecture_picture import KINDS, LAYERS, PICTURE, imports_by_layer, picture, rooms_of
from tests.test_house import ORDER, PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_is_that_of_the_source():
    current = PICTURE.read_text() == picture()
    assert current, "the rooms or their imports have changed; run python -m tests.architecture_picture"


def test_every_room_is_in_one_layer_and_every_import_goes_down():
    rooms = [room for layer in range(len(LAYERS)) for room in rooms_of(layer)]
    assert sorted(rooms) == sorted({room for rooms in ORDER for room in rooms} - {"__main__"})
    assert all(above < below for above, below in imports_by_layer())
    assert {room for kind in KINDS.values() for room in kind} <= set(rooms)


def test_every_file_that_the_page_names_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(named) > 20
    assert not {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()}


def test_the_page_lists_every_room():
    floors = PAGE.partition("## The floors")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", floors))
    assert {room for rooms in ORDER for room in rooms} - {"", "__main__"} <= listed
