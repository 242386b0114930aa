"""The parts of the golden record, and their files."""

import gzip
import json
from pathlib import Path

from tests.golden import decisions, words


def drivers():
    """Return what the drivers do."""
    from tests.golden.drivers import record  # noqa: PLC0415 - the contract of engines needs torch

    return record()


PARTS = {"decisions": decisions.record, "drivers": drivers, "words": words.record}


def file_of(part):
    return Path(__file__).with_name(f"{part}.json.gz")


def kept(part):
    """Return the committed record of a part."""
    return json.loads(gzip.decompress(file_of(part).read_bytes()))


def now(part):
    """Return what the code does now, as it would be read from a file."""
    return json.loads(json.dumps(PARTS[part]()))


def keep(part):
    """Replace the record of a part by what the code does now. Equal content gives equal bytes."""
    text = json.dumps(PARTS[part](), sort_keys=True, separators=(",", ":"))
    file_of(part).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
