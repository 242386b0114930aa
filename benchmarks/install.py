"""What an installation of the core takes: megabytes to download and on disk, and the time of ``import apportion``.

The wheel is built from the checkout and installed in a fresh virtual environment, with the newest numpy and scipy that
the package index offers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter

import numpy as np

from benchmarks.common import ROOT, table, write

REPEATS, SEED = 21, 0
IMPORTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "numpy and bare scipy": "import numpy, scipy",
    "apportion": "import apportion",
    "apportion, and one VIP allocation": "import apportion; apportion.allocate([0.1, 0.5, 0.9], 24, method='vip')",
    "scipy.special": "import scipy.special",
}
SIZES = """
import json, sys
from importlib.metadata import distribution
def sizes(name):
    files = [(str(file), file.locate().stat().st_size) for file in distribution(name).files]
    return [sum(size for _, size in files), sum(size for file, size in files if file.endswith(".pyc"))]
print(json.dumps({name: [distribution(name).version, *sizes(name)] for name in sys.argv[1:]}))
"""


def installed(folder: Path) -> tuple[Path, list[tuple[str, float, float, float]]]:
    """Install the core in ``folder``. Return its Python, and per package the MB of wheel, installed and bytecode."""
    wheels, python = folder / "wheels", folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT)
    (own,) = wheels.glob("apportion-*.whl")
    _run(sys.executable, "-m", "venv", folder / "venv")
    _run(python, *pip[1:], "download", "--only-binary", ":all:", "--dest", wheels, own)
    _run(python, *pip[1:], "install", "--no-index", "--find-links", wheels, own)
    found = json.loads(_run(python, "-c", SIZES, "apportion", "numpy", "scipy"))
    rows = []
    for name, (version, whole, bytecode) in found.items():
        (wheel,) = wheels.glob(f"{name}-*.whl")
        rows.append((f"{name} {version}", wheel.stat().st_size / 1e6, whole / 1e6, bytecode / 1e6))
    return python, rows


def times(python: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the milliseconds, and those of CPU, of a process that imports each of ``IMPORTS``, in turns."""
    rng = np.random.default_rng(SEED)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in IMPORTS}
    for _ in range(REPEATS):
        for name in rng.permutation(list(IMPORTS)):
            found[name].append(_time(python, IMPORTS[name]))
    return found


def _time(python: Path, code: str) -> tuple[float, float]:
    before, started = getrusage(RUSAGE_CHILDREN), perf_counter()
    _run(python, "-I", "-c", code)
    seconds, after = perf_counter() - started, getrusage(RUSAGE_CHILDREN)
    return 1000 * seconds, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _time_rows(found: dict[str, list[tuple[float, float]]]) -> Iterator[Sequence[str]]:
    """Yield the medians, and the medians of the differences from numpy in the same turn."""
    base = np.array(found["numpy"])
    for name, measured in found.items():
        own = np.array(measured)
        wall, cpu = np.median(own, axis=0)
        more, more_cpu = np.median(own - base, axis=0)
        low, high = np.percentile(own[:, 1] - base[:, 1], [25, 75])
        yield name, f"{wall:.0f}", f"{cpu:.0f}", f"{more:+.0f}", f"{more_cpu:+.0f}", f"{low:+.0f} to {high:+.0f}"


def _run(*command: object) -> str:
    return subprocess.run(
        [str(each) for each in command], check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ).stdout


def main() -> None:
    """Write the tables."""
    with tempfile.TemporaryDirectory() as folder:
        python, sizes = installed(Path(folder))
        measured = times(python)
    together = ("together", *(sum(row[at] for row in sizes) for at in (1, 2, 3)))
    rows = [(row[0], *(f"{size:.1f}" for size in row[1:])) for row in (*sizes, together)]
    heads = ("process that imports", "ms", "CPU ms", "ms - numpy's", "CPU ms - numpy's", "quartiles")
    notes = [
        "Sizes of the wheels, and of the files that pip installs from them, bytecode included.",
        table(heads, list(_time_rows(measured))),
        f"Each process was started {REPEATS} times, in turn with the others and in random order. Times are medians, "
        "start of Python included. Differences are medians over turns, and the quartiles are those of the difference "
        "in CPU time. Other work ran on the machine, so CPU time is the better measure.",
    ]
    columns = ("package", "wheel, MB", "installed, MB", "of it bytecode, MB")
    cells = {"milliseconds": measured}
    write("install", "Size of the core, and time of its import", columns, rows, notes, seeds=(SEED,), cells=cells)


if __name__ == "__main__":
    main()
