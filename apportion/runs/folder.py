"""The folder of a run: for one process at a time, with the settings and the environment of the run.

Take the lock with ``hold_folder`` first. Then compare with ``check_settings``, or write with ``write_run``.
"""

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from apportion import __version__
from apportion.runs.whole_files import is_file, remove_unfinished, write_whole
from apportion.toml import ConfigError, load, to_toml
from apportion.untrusted import shown

ENVIRONMENT = "environment.json"
LOCK = "lock"


@contextmanager
def hold_lock(path: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock on the file ``path`` for a block, so that other processes wait. A dead process loses its lock.

    Raises BlockingIOError if another process still holds the lock after ``wait_seconds``, ValueError if ``path`` is not
    a file, and OSError if the file cannot be made.
    """
    is_file(path)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_seconds)
    except Timeout as error:
        path.stat()  # a lock that cannot be made counts as held, too
        raise BlockingIOError(f"another process holds {path}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def hold_folder(folder: Path, kind: str) -> Iterator[None]:
    """Make ``folder`` and lock it for a block, so that other processes stay out. ``kind`` is "study" or "job".

    Raises ConfigError if another process is in it, or if it cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(folder / LOCK))
            remove_unfinished(folder)
        except BlockingIOError as error:
            raise ConfigError(
                f"one process trains a {kind} at a time, got {folder}, which another trains; wait for it, or choose "
                "another --name"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"a {kind} needs a folder that it can write to, got {folder} ({error.strerror or error}); remove what "
                "is in its place, or choose another --name"
            ) from error
        except ValueError as error:
            raise ConfigError(str(error)) from error
        yield


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings that ``write_run`` wrote to ``path``. Raises ConfigError if they cannot be read."""
    try:
        is_file(path)
        return load(path)
    except ValueError as error:
        problem = str(error).partition("; ")[0]
        raise ConfigError(
            f"{problem}; restore {path}, which says how the run was started, or delete {path.parent} to start again"
        ) from error


def check_settings(
    place: Path, started: Mapping[str, Any], given: Mapping[str, Any], remedy: str, may_change: Collection[str] = ()
) -> None:
    """Raise ConfigError if the ``given`` settings of a run differ from those that it was ``started`` with at ``place``.

    Settings of tables have dotted keys, such as "training.seed". Those in ``may_change`` are not compared.

    >>> check_settings(Path("runs/quick"), {"seeds": [0, 1]}, {"seeds": (0, 1), "steps": None}, "choose another --name")
    >>> check_settings(Path("runs/quick"), {"seeds": [0, 1]}, {"seeds": [2]}, "choose another --name")
    Traceback (most recent call last):
    apportion.toml.ConfigError: runs/quick was started with seeds = [0, 1], got [2]; choose another --name
    """
    before, now = _flat(started), _flat(given)
    keys = [key for key in dict.fromkeys([*now, *before]) if key not in may_change]
    changed = [key for key in keys if before.get(key) != now.get(key)]
    if changed:
        key = changed[0]
        old, new = ("nothing" if table.get(key) is None else shown(table[key]) for table in (before, now))
        others = f", and {len(changed) - 1} more" if changed[1:] else ""
        raise ConfigError(f"{place} was started with {key} = {old}, got {new}{others}; {remedy}")


def write_run(settings_file: Path, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Write the settings of a run as TOML to ``settings_file``, and the environment beside it. Raises ConfigError."""
    try:
        write_whole(settings_file, to_toml(settings))
        write_whole(settings_file.parent / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"the settings cannot be written to {settings_file.parent} ({error.strerror or error}); make room, "
            "or choose another --name"
        ) from error


def environment_with(packages: Sequence[str]) -> dict[str, Any]:
    """Return the platform, the usable cores, and the versions of Python, apportion and these ``packages``."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": usable_cores(),
        "apportion": __version__,
        **{package: version(package) for package in packages},
    }


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings by their dotted keys, as JSON returns them. Settings of None are left out."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = json.loads(json.dumps(value))
    return found
