"""``make engines``: each engine of engines.toml in an environment of its own, its test, and its row in docs/engines.md.

A checkout is fetched at its commit, unless the engine's variable names one (``make engines SLIME=folder``). An engine
that cannot be had, or whose test fails, loses all but each "no" of its row.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TREE = Path(__file__).parents[2]
PAGE, LIST = TREE / "docs" / "engines.md", Path(__file__).with_name("engines.toml")
PYTEST = ("-m", "pytest", "-n", "0", "-p", "no:cacheprovider")
BUILT = "built"
"""The file of an environment that says from which list it was built."""


class Missing(Exception):
    """A part of an engine cannot be had; the text says which."""


def main() -> int:
    """Run the engines that are named, by default all, and write their rows. Return 0 if each passed."""
    common, *engines = tomllib.loads(LIST.read_text()).items()
    parser = argparse.ArgumentParser(prog="tests.engines.run")
    parser.add_argument("names", nargs="*", help=", ".join(name for name, _ in engines))
    parser.add_argument("--folder", type=Path, default=TREE / ".venv" / "engines", help="of the environments")
    args = parser.parse_args()
    results = []
    for name, engine in engines:
        if name in (args.names or dict(engines)):
            engine["packages"] = common[1]["packages"] + engine["packages"]
            results.append(tested(name, engine, args.folder.absolute() / name))
            sys.stdout.write(f"{name}: {results[-1]}\n")
            PAGE.write_text(with_row(PAGE.read_text(), engine, f"{time.strftime('%-d %B %Y')}: {results[-1]}"))
    return 0 if all(map(passed, results)) else 1


def tested(name: str, engine: Mapping[str, Any], folder: Path) -> str:
    """Return what the test of an engine said, or why it could not run."""
    variable, paths, place = name.upper(), [str(TREE)], "1"
    try:
        build(engine, folder)
        if "commit" in engine:
            place = os.path.abspath(os.environ.get(variable) or checkout(engine, folder / "checkout"))
            head = call(f"{variable} is no checkout", ["git", "-C", place, "rev-parse", "HEAD"]).strip()
            if head != engine["commit"]:
                return f"{variable} is at {head[:8]}"
            paths += [str(Path(place) / part) for part in engine["paths"]]
    except Missing as missing:
        return str(missing)
    run = subprocess.run(
        [folder / "bin" / "python", *PYTEST, f"tests/engines/test_{name}.py"],
        cwd=TREE, env=os.environ | {variable: place, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    found = counted(run.stdout)
    if run.returncode or not passed(found):
        sys.stderr.write(run.stdout)
    return found or "its test did not start"


def counted(output: str) -> str:
    """Return what the last line of pytest counts, "" without one. Libraries may write after it as they end."""
    closing = [line for line in output.splitlines() if line.startswith("==") and " in " in line]
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", closing[-1])) if closing else ""


def passed(result: str) -> bool:
    """Return whether all tests of an engine passed, and none was skipped."""
    return re.fullmatch(r"\d+ passed", result) is not None


def build(engine: Mapping[str, Any], folder: Path) -> None:
    """Make the environment of an engine, unless it is there from the same list. Raise Missing if it cannot be made."""
    wanted, built = repr([engine[key] for key in ("python", "packages", "engine")]), folder / BUILT
    if built.exists() and built.read_text() == wanted:
        return
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    call("no environment could be made", [f"python{engine['python']}", "-m", "venv", "--clear", str(folder)])
    call("its packages could not be installed", [*pip, "-c", str(TREE / "constraints.txt"), *engine["packages"]])
    if engine["engine"]:
        call("it could not be installed", [*pip, "--no-deps", *engine["engine"]])
    built.write_text(wanted)


def checkout(engine: Mapping[str, Any], folder: Path) -> str:
    """Return the folder of an engine's source at its commit. Raise Missing if it cannot be reached."""
    git = ["git", "-C", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    call("git could not make a folder", ["git", "init", "--quiet", str(folder)])
    call(
        f"{engine['source']} could not be reached",
        [*git, "fetch", "--quiet", "--depth", "1", engine["source"], engine["commit"]],
    )
    call("its commit could not be checked out", [*git, "checkout", "--quiet", "--force", "FETCH_HEAD"])
    return str(folder)


def call(problem: str, command: list[str]) -> str:
    """Return what ``command`` printed. Raise Missing with ``problem`` if it fails."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"GIT_TERMINAL_PROMPT": "0"})
    except FileNotFoundError as error:
        raise Missing(f"{command[0]} is not there") from error
    if run.returncode:
        sys.stderr.write(run.stderr)
        raise Missing(problem)
    return run.stdout


def with_row(page: str, engine: Mapping[str, Any], result: str) -> str:
    """Return ``page`` with the row of ``engine``: version, result, and what was tested if the result is a pass."""
    versions = [engine["commit"][:8]] if "commit" in engine else []
    versions += [pin.replace("==", " ") for pin in engine["engine"]]
    able = passed(result.partition(": ")[2])
    cells = [cell if able or cell.startswith("no:") else "not tested" for cell in engine["cells"]]
    link = f"[{engine['name']}](#{engine['name'].lower()})"
    row = " | ".join([link, ", ".join([*versions, f"Python {engine['python']}"]), result, *cells])
    written, rows = re.subn(rf"^\| {re.escape(link)} .*$", lambda _: f"| {row} |", page, flags=re.MULTILINE)
    if rows != 1:
        raise ValueError(f"{PAGE} must have one row of {link}, got {rows}; add it to the table")
    return written


if __name__ == "__main__":
    sys.exit(main())
