"""How long each command of docs/diagnose.md takes in a fresh environment, and how long the installation does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import write

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "diagnose.md"
REPEATS = 3
_BLOCK = re.compile(
    r"^(<!-- not run: [^\n]+ -->\n)?```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Step:
    """A shell block of the page: its commands, and the output that the page quotes; "..." stands for other lines."""

    command: str
    quoted: str

    @property
    def needs_verl(self):
        """Whether verl must be installed."""
        return "apportion.verl" in self.command

    @property
    def title(self):
        """The commands as one line."""
        return " && ".join(re.sub(r"\\\n\s*", "", self.command).strip().splitlines())


def steps(page=PAGE):
    """Yield the shell blocks of ``page`` in their order, without those that are marked as not run."""
    for marked, command, quoted in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not marked:
            yield Step(command, quoted)


def run(step, folder, python):
    """Run a step in ``folder``, with the commands of the environment of ``python``."""
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-ec", step.command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=600
    )


def fresh(folder):
    """Install this checkout into a new environment. Return its Python, the seconds, and the MB that it takes."""
    started = time.perf_counter()
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[cli,report]"], check=True, capture_output=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    return python, time.perf_counter() - started, size


def timed(step, folder, python):
    """Return the seconds of a step."""
    started = time.perf_counter()
    done = run(step, folder, python)
    if done.returncode:
        raise RuntimeError(f"{step.title} must end with 0, got {done.returncode}: {done.stderr}")
    return time.perf_counter() - started


def main():
    """Write the table."""
    with tempfile.TemporaryDirectory() as place:
        python, installing, size = fresh(Path(place) / "venv")
        found: dict[str, list[float]] = {}
        for repeat in range(REPEATS):
            folder = Path(place) / f"run-{repeat}"
            folder.mkdir()
            shutil.copytree(ROOT / "examples", folder / "examples")
            for step in steps():
                if not step.needs_verl:
                    found.setdefault(step.title, []).append(timed(step, folder, python))
    rows = [("all of them", f"{sum(map(median, found.values())):.1f}")]
    notes = [
        f"The commands of docs/diagnose.md in a fresh environment, on a busy machine. Medians of {REPEATS}. The run "
        "has 54 steps of 128 prompts with 8 rollouts each. The environment and `pip install '.[cli,report]'` took "
        f"{installing:.0f} seconds and {size:,.0f} MB."
    ]
    write("first_run", "Time from a log to a plan", ("command", "seconds"), rows, notes, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
