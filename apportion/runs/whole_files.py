"""Files that are replaced in one step: after a kill, a file is the old one or the new one, both whole."""

import os
import stat
from pathlib import Path
from uuid import uuid4

UNFINISHED = ".unfinished"


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write ``content``, text as UTF-8, to ``path`` in one step.

    A kill or a full disk leaves the old file, never half of the new one. Several processes may write the same file at
    the same time. No link is followed: a link at ``path`` is replaced. A killed process leaves a file
    ``.NAME.HEX.unfinished`` behind, which nothing reads. Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}{UNFINISHED}")
    file = unfinished.open("xb")
    try:
        with file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # the content must reach the disk before the name does
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of killed writers in ``folder``. Call it while the folder is locked."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def is_file(path: Path) -> bool:
    """Return whether there is a file at ``path``.

    Raises ValueError if something else is in its place, because to read a named pipe would wait without end.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise ValueError(
            f"{path} must be a file, got an error ({error.strerror or error}); remove what is in its place"
        ) from error
    if mode is None or stat.S_ISREG(mode):
        return mode is not None
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    raise ValueError(f"{path} must be a file, got {kinds.get(stat.S_IFMT(mode), 'a device')}; remove it")
