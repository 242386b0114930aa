"""Cells: measurements of a few minutes, each in its own process, and kept until their canary or arguments change.

A cell is a function without arguments that returns JSON values. Its process has a bound of time. A cell that fails is
told, and the others go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from apportion.runs.whole_files import write_whole
from benchmarks.common import ROOT, facts

FOLDER = ROOT / "runs" / "evidence"
"""What was measured on this machine, which git ignores: a file a cell."""
CANARIES = Path(__file__).parent / "measured" / "canaries.json"
"""The figures of the canaries (``canaries``), committed: a line a module."""
COMMAND = (sys.executable, "-m", "benchmarks.evidence", "--child", "--cell")
PATIENCE = 10
"""A cell is stopped after so many times the minutes that it should take."""

Values = Mapping[str, Any]
"""What a cell measured: JSON values by name."""


@dataclass(frozen=True)
class Cell:
    """A measurement.

    Args:
        measure: returns the values, which must be small: figures, not samples.
        minutes: how long it takes on one quiet core, about.
        seeds: the seeds that it uses, for the record.
    """

    measure: Callable[[], Values]
    minutes: float = 1.0
    seeds: Sequence[int] = (0,)

    def key(self, canary):
        """Return what the kept values belong to: a hash of the ``canary``'s figures, the arguments and the seeds."""
        call = self.measure if isinstance(self.measure, partial) else partial(self.measure)
        given = [canary, *map(_plain, (call.args, call.keywords)), list(self.seeds)]
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def rounded(value, digits):
    """Return a JSON value whose floats have so many digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def write_lines(path, content):
    """Write ``content`` as a JSON object with a line for each key, so that git shows which one changed."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(each)}" for key, each in content.items())
    write_whole(path, f"{{\n{lines}\n}}\n")


def _plain(given):
    """Return arguments as JSON values: a function by its name, wherever it is."""
    if isinstance(given, Mapping):
        return {str(key): _plain(each) for key, each in given.items()}
    if isinstance(given, list | tuple):
        return [_plain(each) for each in given]
    return getattr(given, "__name__", given)


def key_of(name, cell):
    """Return the key of a cell by the figures of its canary that are kept."""
    return cell.key(canary_of(name.split(".")[0]))


def canary_of(module):
    """Return the kept figures of a module's canary; None if there are none."""
    return json.loads(CANARIES.read_text(encoding="utf-8")).get(module) if CANARIES.exists() else None


def kept(name, cell):
    """Return the file of a cell, unless there is none or its key has changed: ``values``, ``facts`` and ``key``."""
    try:
        found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:  # a damaged file: the cell is measured again
        return None
    return found if isinstance(found, dict) and found.get("key") == key_of(name, cell) else None


def measure(name, cell):
    """Measure in this process and keep the values."""
    started, used = time.monotonic(), time.process_time()
    values = cell.measure()
    seconds = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    content = {"key": key_of(name, cell), "facts": {**facts(), **seconds, "seeds": list(cell.seeds)}, "values": values}
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_whole(FOLDER / f"{name}.json", json.dumps(content, allow_nan=False) + "\n")


def run(cells, processes, command=COMMAND):
    """Measure every cell that is not kept, so many at a time, the longest first. Return the names of those that failed.

    ``command`` and the name of a cell measure it in a process. Ctrl-C ends the processes, and so does the end of this
    one. What is finished then is kept.
    """
    waiting = sorted((name for name in cells if kept(name, cells[name]) is None), key=lambda n: -cells[n].minutes)
    print(f"{len(cells) - len(waiting)} of {len(cells)} cells are measured", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed, stop = [], Event()
    with ThreadPoolExecutor(processes) as pool:
        running = {
            pool.submit(_in_process, [*command, name], name, 60 * PATIENCE * cells[name].minutes, stop): name
            for name in waiting
        }
        try:
            for number, done in enumerate(as_completed(running), start=1):
                name, error = running[done], done.result()
                print(f"[{number}/{len(waiting)}] {name}: {error or 'measured'}", flush=True)
                failed += [name] if error else []
        except BaseException:  # Ctrl-C, or a full disk: the with statement would wait for all that are left
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _in_process(command, name, seconds, stop):
    """Run ``command`` until it ends, for at most so many seconds. Return "" or what went wrong."""
    path, end = FOLDER / f"{name}.log", time.monotonic() + seconds
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (
        path.open("wb") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        while process.poll() is None and time.monotonic() < end and not stop.is_set():
            time.sleep(0.1)
        late = process.poll() is None
        if late:
            process.kill()
    if late:
        return "stopped" if stop.is_set() else f"not finished after {seconds:.0f} s, see {path}"
    if process.returncode:
        return f"failed with exit code {process.returncode}, see {path}"
    return ""


def end_with_parent():
    """Have this process end as soon as its standard input does, which the process that started it holds open."""

    def wait():
        while os.read(0, 4096):
            pass
        os._exit(1)

    Thread(target=wait, daemon=True).start()
