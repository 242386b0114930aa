"""Damage every file that apportion reads, and its command lines, thousands of times, and judge what it makes of them.

    python -m benchmarks.hostile_input                # the table
    python -m benchmarks.hostile_input --cases 200 --only CSV --show

A case is a valid input with one seeded mutation. It runs in a process of its own within bounds of time and memory. It
passes if the exit code is 0, 1 or 2, no traceback is shown, a refusal is one line that begins with "error:", no code of
a file was executed, nothing was written beside the run's folder, and what was accepted is right by an independent
reader.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # read on import: no case may ask a hub for what it names
os.environ["TRANSFORMERS_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import gc
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import apportion.lab.command
import apportion.trl.jobs.command
import apportion.vote.estimate  # noqa: F401 - so that no case has to import it
from benchmarks.common import RESULTS, options, write
from benchmarks.hostile_forks import CPU_SECONDS, MEMORY_BYTES, Outcome, run_forked
from benchmarks.hostile_judges import Accepted, Unreadable
from benchmarks.hostile_mutations import MARKER, change_arguments
from benchmarks.hostile_targets import FORMATS, Seed, Target, make_targets, replies
from benchmarks.small_study import base_folder

CASES, SEED = 2000, 0
REFUSED = 2
EVEN = " gives every prompt the same: "
"""What a warning about a rule without room to decide says, which is right to say of an accepted input."""
COLUMNS = {
    "refused": "refused",
    "accepted and right": "right",
    "failed in the run": "failed",
    "tracebacks": "traceback",
    "wrong exit or lines": "lines",
    "silent nonsense": "nonsense",
    "code executed": "executed",
    "written elsewhere": "elsewhere",
    "beyond the bounds": "bounds",
}
"""What a case can be, by column. The first three are passes."""
PASSES = tuple(COLUMNS.values())[:3]


@dataclass(frozen=True)
class Case:
    """A damaged input of ``target``: a ``seed`` with another ``content`` of its victim, or with other ``arguments``."""

    target: Target
    seed: Seed
    number: int
    mutation: str
    content: bytes
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """How a case ended, its verdict, and what is wrong with it."""

    case: Case
    outcome: Outcome
    verdict: str
    why: str


def study(results=RESULTS, cases=CASES, only=FORMATS, show=False):
    """Run ``cases`` mutations of every format and write the table ``hostile_input``. Return all results."""
    base = base_folder()
    with tempfile.TemporaryDirectory() as name, replies() as port:
        folder = Path(name).resolve()
        targets = make_targets(base, folder / "valid", port)
        targets = [target for target in targets if target.format in only]
        gc.collect()
        gc.freeze()  # children then share the imported modules' memory
        found: list[Result] = []
        check_valid(targets, folder / "case")
        for target in targets:
            found += [run(case, folder / "case") for case in cases_of(target, targets, cases)]
            own = [each for each in found if each.case.target is target]
            print(target.format, target.command, dict(Counter(each.verdict for each in own)), flush=True)
            for each in own:
                if show and each.verdict not in PASSES:
                    print("  ", describe(each), flush=True)
    write(
        "hostile_input",
        "Damaged files and command lines",
        ["format", "command", "cases", *COLUMNS],
        rows(found),
        [
            "A valid input with one seeded mutation each: bits flipped, ranges lost or spliced, numbers and strings "
            "made extreme, keys renamed, values nested deeply, encodings changed, files compressed, arguments changed; "
            "pickles get code to run. Each case runs the real command or the library's loader, with "
            f"{CPU_SECONDS} s of processor time and {MEMORY_BYTES // 2**30} GiB of memory beyond the start.",
            "Refused: exit code 2 and one line that begins with `error:`. Accepted and right: exit code 0, and an "
            "independent reader finds the output right; a loader restored exactly what was saved. Failed in the run: "
            "exit code 1 without a traceback, as a vote whose server sends nonsense, and overrides of verl that Hydra "
            "itself refuses. All further columns are defects.",
        ],
        seeds=[SEED],
        cells={"defects": [describe(result) for result in found if result.verdict not in PASSES]},
        results=results,
    )
    return found


def cases_of(target, targets, cases):
    """Yield the target's share of its format's cases."""
    whole = sum(each.share for each in targets if each.format == target.format)
    for number in range(max(1, round(cases * target.share / whole))):
        rng = Random(f"{SEED} {target.format} {target.command} {number}")
        seed, other = rng.choice(list(target.seeds)), rng.choice(list(target.seeds))
        if not seed.victim:
            yield Case(
                target, seed, number, "arguments", b"", tuple(change_arguments(rng, seed.arguments, other.arguments))
            )
            continue
        mutation = rng.choice(target.mutations)
        content = mutation(rng, seed.files[seed.victim], other.files[other.victim])
        yield Case(target, seed, number, mutation.__name__, content, seed.arguments)


def check_valid(targets, folder):
    """Raise ValueError unless every valid input is accepted and right, because mutations of it would prove nothing."""
    for target in targets:
        for number, seed in enumerate(target.seeds):
            case = Case(target, seed, number, "none", seed.files.get(seed.victim, b""), seed.arguments)
            result = run(case, folder)
            if result.verdict != "right":
                raise ValueError(
                    f"a valid input must be accepted, got {describe(result)}: {result.outcome}; correct it"
                )


def run(case, folder):
    """Run the case in a fork, in a folder of its own within ``folder``, and judge it."""
    work, arguments = _laid_out(case, folder)
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home")}
    outcome = run_forked(lambda: case.target.run(arguments), work, environment)
    verdict, why = judge(case, Accepted(arguments, work, outcome.out, outcome.err), outcome)
    shutil.rmtree(folder)
    return Result(case, outcome, verdict, why)


def judge(case, accepted, outcome):
    """Return the verdict on a case, and what is wrong."""
    target, lines = case.target, outcome.err.splitlines()
    if any((accepted.folder.parent.parent).rglob(MARKER)):
        return "executed", "code in the file was executed"
    if outcome.code < 0 or outcome.code > 128 or outcome.memory > MEMORY_BYTES or "MemoryError" in outcome.err:
        return "bounds", f"exit {outcome.code} after {outcome.seconds:.1f} s and {outcome.memory / 2**20:.0f} MiB"
    if "Traceback (most recent call last)" in outcome.err:
        return "traceback", " ".join(lines[-1].split())[:300] if lines else ""
    if written := _written(case, accepted):
        return "elsewhere", f"wrote {written}"
    if outcome.code not in (0, 1, REFUSED):
        return "lines", f"exit {outcome.code}"
    if any("Warning" in line for line in lines):
        return "lines", f"exit {outcome.code}: {outcome.err[:200]}"
    if outcome.code == REFUSED:
        good = len(lines) == 1 and lines[0].startswith("error: ") and lines[0].isprintable() and len(lines[0]) < 2100
        return ("refused", "") if good else ("lines", f"{len(lines)} lines: {outcome.err[:300]!r}")
    if outcome.code == 1:
        return "failed", ""
    if [line for line in lines if EVEN not in line] and not target.talks:
        return "lines", f"exit 0 and {outcome.err[:200]!r}"
    try:
        why = "" if "--help" in accepted.arguments else target.judge(accepted)
    except (Unreadable, KeyError, ValueError, TypeError, OSError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    return ("nonsense", why) if why else ("right", "")


def rows(found):
    """Return one row for each format, and one for all."""
    formats = list(dict.fromkeys(each.case.target.format for each in found))
    lines = []
    for name in [*formats, "all"]:
        own = Counter(each.verdict for each in found if name in (each.case.target.format, "all"))
        lines.append([name, "all", f"{own.total():,}", *(f"{own[verdict]:,}" for verdict in COLUMNS.values())])
    return lines


def describe(result):
    """Return what a person needs to see a case again."""
    case, target = result.case, result.case.target
    found = {"format": target.format, "command": target.command, "number": case.number, "mutation": case.mutation}
    return found | {"verdict": result.verdict, "exit": result.outcome.code, "why": result.why}


def _laid_out(case, folder):
    """Write the case's files; return its working directory, deep enough for path tricks to show, and its arguments."""
    work = folder / "a" / "b" / "work"
    work.mkdir(parents=True)
    for name, content in case.seed.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case.content if name == case.seed.victim else content)
    return work, [argument.replace("/FOLDER", str(work)) for argument in case.arguments]


def _written(case, accepted):
    """Return a file that was written, changed or removed where the command has no business, or ""."""
    work = accepted.folder
    top = work.parents[2]
    allowed = {*case.target.writes, accepted.option("--out")} - {""}
    own = {"a/b/out", "a/b/err", "a/b/start"}
    for path in [path for path in top.rglob("*") if path.is_file()]:
        name = str(path.relative_to(top))
        if name in own or name.startswith(("cache/", "home/")):
            continue
        inside = str(path.relative_to(work)) if path.is_relative_to(work) else ""
        if inside and any(inside == each or inside.startswith(f"{each}/") for each in allowed):
            continue
        content = case.content if inside and inside == case.seed.victim else case.seed.files.get(inside)
        if content is None or path.read_bytes() != content:
            return inside or name
    return ""


if __name__ == "__main__":
    given = options(__doc__, cases=CASES, only=FORMATS, show=False, results=RESULTS)
    study(given.results, given.cases, given.only, given.show)
