"""Files that are either the old one or the new one, whatever happens to the process that writes them."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO
from uuid import uuid4


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write ``content``, text as UTF-8, to ``path`` in one step.

    A kill or a full disk leaves the old file, never half of the new one. Several processes may write the same file at
    the same time. Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # the content must reach the disk before the name does
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_whole_by(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to ``path`` what ``write`` puts into the file that it is given, as ``write_whole`` does."""
    whole = io.BytesIO()
    write(whole)  # to memory first, because torch.save raises no OSError on a full disk
    write_whole(path, whole.getbuffer())
