"""Files that are whole: a reader finds the old content or the new, whatever happens to the writer."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Writes ``content`` so that a kill or a full disk leaves the old file or the new one, never half of it."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())  # the new name must not reach the disk before what it names
    os.replace(unfinished, path)
