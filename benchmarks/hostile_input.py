"""Damage the files that users bring, hundreds of times each, and judge what the package reads in them.

    python -m benchmarks.hostile_input                # the table
    python -m benchmarks.hostile_input --cases 2000

A case is a valid file with one seeded mutation. It is read in a process of its own within bounds of time and memory. It
passes if it is refused by an error that names the place, or if what was read is what is right: the same as before in
files of ours, which have checksums, and what Python's own readers find in all others.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import csv
import gc
import gzip
import io
import json
import pickle
import re
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import psutil
import pyarrow
import torch
from pyarrow.parquet import ParquetFile, write_table

from apportion import Uniform
from apportion.config import dump
from apportion.engines.saved_state import load_state, packed, save_state
from apportion.lab.study.design import read_pools, read_study
from apportion.questions import Question, read_questions
from apportion.records import open_run, prepare_log, read_streams, write_step
from apportion.untrusted import one_line
from apportion.vote.journal import Journal, read_finished, read_recorded
from apportion.vote.setup import make_setup
from benchmarks.common import RESULTS, options, write
from benchmarks.small_study import base_folder, study_text
from tests.builders import make_batch
from tests.records.importing.tables import comma_separated, jsonl, rollouts
from tests.vote.builders import make_ballot, make_sample

CASES, SEED, REFUSED = 400, 0, 2
CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES = 10, 120, 2**31
MARKER = "code-was-executed"
"""The file that crafted pickles make in the working directory."""
COLUMNS = (
    "refused", "accepted and right", "tracebacks", "unclear errors", "silent nonsense", "code executed",
    "beyond the bounds",
)  # fmt: skip
"""What a case can be. The first two are passes."""

TORN = "without the last row, which is not whole"
"""What a reader of a run must say if the file ends within a row, as if its writer had been stopped."""

NUMBERS = (
    "-1", "1e300", "1e-320", "nan", "-inf", "Infinity", str(2**63), "1" + "0" * 5000, "1_000", "0x10",
    "true", "null", "", '""', "[]", "{}", "1979-05-27", "\u0663", "[" * 10**5, '{"a":' * 2000,
)  # fmt: skip
STRINGS = (
    "", " ", "x" * 10**5, "\0", "\x1b[31m", "\\ud800", "\ud800", "../../escaped", "~", "--help", "\u202etxt",
    "{question}", "\n\n", "\\", '"', "nan", "0", "__class__", "uniform",
)  # fmt: skip
TOKEN = re.compile(r'(?P<string>"[^"\n]*"|\'[^\'\n]*\')|(?P<number>(?<![\w.])-?\d[\w.+-]*)|(?P<word>[A-Za-z_]\w*)')


def flip(rng, own, other):
    """Flip one to eight bits."""
    found = bytearray(own)
    for _ in range(rng.choice((1, 1, 2, 8))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def change_range(rng, own, other):
    """Remove a range, write it twice, replace it by zeros, as a lost block of a disk, or insert bytes before it."""
    first = rng.choice((0, *[rng.randrange(len(own) + 1)] * 4))
    lost = own[first : first + rng.choice((1, 1, 4, 100, 1000))]
    new = rng.choice((b"", 2 * lost, bytes(len(lost)), rng.randbytes(4) + lost, b"\xef\xbb\xbf" + lost))
    return own[:first] + new + own[first + len(lost) :]


def splice(rng, own, other):
    """Keep the beginning, or join it and the end of another file."""
    end = rng.choice((b"", other[rng.randrange(len(other)) :]))
    return own[: rng.choice((rng.randrange(len(own)), -rng.randrange(1, 9)))] + end


def encode(rng, own, other):
    """Save the text in another encoding, with other ends of lines, or compressed."""
    other_ends = own.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\x0b", "\u2028".encode(), b"")))
    return rng.choice((other_ends, own.decode().encode(rng.choice(("utf-16", "utf-8-sig"))), gzip.compress(own)))


def change_token(rng, own, other):
    """Make a number or a text extreme or of another type, rename a word, or nest brackets in the place of a value."""
    text = own.decode()
    match = rng.choice([*TOKEN.finditer(text)])
    old, quote = match[0], match[0][0]
    new = {
        "number": NUMBERS,
        "string": (*NUMBERS, *(quote + each + quote for each in STRINGS)),
        "word": (*STRINGS, old + old, old[:-1], old.upper()),
    }[match.lastgroup]
    return (text[: match.start()] + rng.choice(new) + text[match.end() :]).encode("utf-8", "surrogatepass")


def change_lines(rng, own, other):
    """Remove, repeat or join a line, or put one of another file before it."""
    lines, foreign = own.splitlines(keepends=True), rng.choice(other.splitlines(keepends=True))
    place = rng.randrange(len(lines))
    line = lines[place]
    lines[place : place + 1] = rng.choice(([], [line, line], [foreign, line], [line.rstrip()]))
    return b"".join(lines)


def put_pickle(rng, own, other):
    """Put a pickle that runs code, or asks for much memory, in the place of the file or before it."""
    module, name, *given = rng.choice(CALLS)
    return f"c{module}\n{name}\n".encode() + pickle.dumps(tuple(given), 2)[2:-1] + b"R." + rng.choice((b"", own))


CALLS = (
    ("os", "system", f"touch {MARKER}"),
    ("builtins", "bytearray", 2**40),
)
BYTES = (flip, change_range, change_range, splice)
TEXT = (*BYTES, encode, *(change_token,) * 5, change_lines, change_lines)


@dataclass(frozen=True)
class Target:
    """Files of a kind, of which one is damaged, and what reads them.

    ``read`` returns lines, and is called in the folder of the files. ``right`` says whether they are right, by these
    lines, those of the undamaged files, and the path of the damaged one. The error of a refusal must name a file, or
    have one of ``words`` in it.
    """

    kind: str
    files: dict
    read: Callable
    right: Callable
    mutations: tuple = TEXT
    words: tuple = ()


def make_targets(folder):
    """Yield all targets. Valid files are made in ``folder``."""
    write_log(folder / "log")
    yield Target("rollout logs", _files(folder / "log"), _read_log, unchanged, BYTES)
    table = folder / "table"
    for name, rows in (("run", rollouts()), ("asked", QUESTIONS)):
        jsonl(table / f"{name}.jsonl", rows)
        comma_separated(table / f"{name}.csv", rows)
    write_table(pyarrow.Table.from_pylist(QUESTIONS), table / "asked.parquet", write_page_checksum=True)
    for name, content in _files(table).items():
        kind, read, plainly = TABLES[Path(name).stem]
        mutations = BYTES if name.endswith(".parquet") else TEXT
        yield Target(kind, {name: content}, partial(read, name), partial(same_as_python, plainly), mutations)
    write_votes(folder / "vote")
    yield Target("votes", _files(folder / "vote"), _read_votes, nothing_new)
    path = folder / "run" / "saved.pt"
    path.parent.mkdir()
    save_state(path, "run", {"step": 4, "weights": torch.arange(300.0), "rates": {"q1": 0.25}})
    yield Target("checkpoints", _files(path.parent), _read_state, unchanged, (*BYTES, put_pickle))
    base = base_folder()
    text = study_text(base, 160)
    words = tuple(re.findall("[a-z_]{4,}", text))
    yield Target("settings", {"study.toml": text.encode()}, _read_study, right_settings, words=words)


QUESTIONS = [{"id": f"q{n}", "prompt": f"{n} x 7, \u00e9tudiant?", "answer": str(7 * n)} for n in range(6)]
SETUP = make_setup("http://127.0.0.1:9/v1", "tiny", max_samples=4, equivalence="exact")


def write_log(folder, steps=2):
    """Write a rollout log."""
    prepare_log(folder)
    for step in range(steps):
        batch = make_batch([[1, 0, step, 0]] * 4)
        write_step(folder, step, batch, Uniform(4).groups(batch))


def write_votes(folder):
    """Write four questions, of which one is not finished."""
    folder.mkdir()
    with Journal(folder / "answers.jsonl", SETUP) as journal:
        for question in "abcd":
            for number in range(3):
                journal.keep(make_sample(question, number))
            if question != "d":
                counts = {"samples": 3, "unparsed": 0, "texts": 1, "completion_tokens": 15}
                journal.append(make_ballot(question, votes={"7": 3}, **counts))
    (folder / "answers.lock").unlink()


def _files(folder):
    return {f"{folder.name}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


def _read_log():
    return map(repr, read_streams(Path("log")).items())


def _read_run(name):
    run = open_run(Path(name))
    rewards, torn = run.reward, any("the last row is not whole" in doubt for doubt in run.doubts)
    return [f"{len(rewards)} rows, {rewards[rewards == rewards].sum():.9g} in all", *[TORN] * torn]


def _read_asked(name):
    return [f"{each.id!r} {each.prompt!r} {each.gold!r}" for each in read_questions(Path(name))]


def _read_votes():
    path = Path("vote", "answers.jsonl")
    read_finished(path, SETUP)
    record = read_recorded(path)
    return map(repr, [*record.ballots.values(), *(each for own in record.samples.values() for each in own.values())])


def _read_state():
    return [sha256(packed("run", load_state(Path("run", "saved.pt"), "run", remedy="delete it"))).hexdigest()]


def _read_study():
    study = read_study(Path("study.toml"), (), None, resume=False)
    read_pools(study)
    return [json.dumps(dump(study))]


def unchanged(found, whole, path):
    """Whether everything was read as it was written."""
    return found == whole


def nothing_new(found, whole, path):
    """Whether nothing was read that was not written. What a torn end has lost is asked for again."""
    return {*found} <= {*whole}


def same_as_python(plainly, found, whole, path):
    """Whether the lines are those that ``plainly`` makes of the rows that Python's own readers find.

    A last row that is not whole may be left out if that is said.
    """
    if path.suffix == ".parquet":
        with ParquetFile(path, page_checksum_verification=True) as file:
            return found == plainly(file.read().to_pylist())
    content = path.read_bytes()
    text = (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode("utf-8-sig")
    cut = not text.endswith(("\n", "\r"))
    if path.suffix == ".jsonl":
        lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
        torn = cut and not _is_json(lines[-1])
        rows = [json.loads(line) for line in lines[: len(lines) - torn]]
    else:
        names, *lines = (
            line for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True) if line
        )
        torn = cut and len(lines[-1]) < len(names)
        rows = [dict(zip(map(str.strip, names), line, strict=True)) for line in lines[: len(lines) - torn]]
    return found == [*plainly(rows), *[TORN] * torn]


def _is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _rewards(rows):
    rewards = [float({"true": 1}.get(row.get("reward"), row.get("reward")) or 0) for row in rows]
    return [f"{len(rows)} rows, {sum(each for each in rewards if each == each):.9g} in all"]


def _asked(rows):
    """Return the lines of questions. One without an id has a hash of its prompt as its id."""
    ids = [str(row.get("id") or Question("", row["prompt"]).id) for row in rows]
    golds = ["" if row.get("answer") in (None, []) else str(row["answer"]).strip() for row in rows]
    return [f"{id!r} {row['prompt']!r} {gold or None!r}" for id, row, gold in zip(ids, rows, golds, strict=True)]


TABLES = {"run": ("runs", _read_run, _rewards), "asked": ("questions", _read_asked, _asked)}


def right_settings(found, whole, path):
    """Whether every setting of the file was read, and has the type that it had before."""
    table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    given, own, before = (
        dict(_leaves(json.loads(text, parse_int=float))) for text in (json.dumps(table, default=str), *found, *whole)
    )
    for key, value in given.items():
        read, old = own.get(key, own.get((*key, "name"))), before.get(key)
        if value != read or type(value) is not type(read) or type(old) not in (type(value), type(None)):
            return False
    return True


def _leaves(table, at=()):
    """Yield the values of a table with their keys."""
    if not isinstance(table, dict):
        yield at, table
        return
    for name, value in table.items():
        yield from _leaves(value, (*at, name))


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code, negative for a signal, and what it printed."""

    code: int
    out: str
    err: str


def run_forked(act, files, folder):
    """Run ``act`` in a fork, within bounds, in the folder ``work`` of ``folder``, where ``files`` are written first.

    SystemExit and exceptions end it as Python does. ``files`` are contents by name.
    """
    (folder / "work").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / "work" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    child = os.fork()
    if not child:
        _become(act, folder)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left
    printed = [(folder / name).read_text("utf-8", "replace") for name in ("out", "err")]
    return Outcome(os.waitstatus_to_exitcode(status), *printed)


def _become(act, folder):
    """Carry out ``act`` as the whole of this process."""
    code = 1
    try:
        os.setsid()
        signal.alarm(WALL_SECONDS)
        os.chdir(folder / "work")
        for name, place in (("out", 1), ("err", 2)):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), place)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
        memory = psutil.Process().memory_info().vms + MEMORY_BYTES
        for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, CPU_SECONDS)):
            resource.setrlimit(what, (most, most))
        act()
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:  # noqa: BLE001 - a fork must never return into the benchmark
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def one_line_errors(act):
    """Call ``act``, and end the process as the commands do if it refuses what it was given."""
    try:
        act()
    except ValueError as error:
        print(one_line(str(error)), file=sys.stderr)
        sys.exit(REFUSED)


def tried(target, files, folder):
    """Read ``files`` in a fork."""
    return run_forked(partial(one_line_errors, lambda: print(*target.read(), sep="\n")), files, folder)


def judged(target, outcome, whole, folder, victim):
    """Return the verdict on a case, one of ``COLUMNS``, and what is wrong."""
    refused, accepted, traced, unclear, nonsense, executed, beyond = COLUMNS
    if any(folder.rglob(MARKER)):
        return executed, ""
    if outcome.code < 0 or "MemoryError" in outcome.err:
        return beyond, f"exit {outcome.code}"
    if outcome.code == REFUSED:
        return refused if any(name in outcome.err for name in (*target.files, *target.words)) else unclear, outcome.err
    if outcome.code or re.search("Traceback|Warning", outcome.err):
        return traced, outcome.err[-300:]
    try:
        right = target.right(outcome.out.splitlines(), whole.out.splitlines(), folder / "work" / victim)
    except Exception as error:  # noqa: BLE001 - the independent reader refuses the file
        return nonsense, repr(error)
    return accepted if right else nonsense, outcome.out[:300]


def study(results=RESULTS, cases=CASES):
    """Try ``cases`` mutations of every target and write the table ``hostile_input``."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        targets = [*make_targets(folder)]
        gc.freeze()  # forks then share the memory of the imported modules
        for target in targets:
            names = [*target.files]
            whole, own = tried(target, target.files, folder / "valid"), found.setdefault(target.kind, Counter())
            shutil.rmtree(folder / "valid")
            if whole.code:
                raise ValueError(f"valid files must be accepted, got {whole} of {names}; correct them")
            for number in range(cases):
                rng = Random(f"{SEED} {names} {number}")
                victim, mutation = rng.choice(names), rng.choice(target.mutations)
                content = mutation(rng, target.files[victim], rng.choice([*target.files.values()]))
                outcome = tried(target, {**target.files, victim: content}, folder / "case")
                verdict, why = judged(target, outcome, whole, folder / "case", victim)
                shutil.rmtree(folder / "case")
                own[verdict] += 1
                if verdict not in COLUMNS[:2]:
                    print(victim, number, mutation.__name__, verdict, why, flush=True)
            print(*names, dict(own), flush=True)
    found["all"] = sum(found.values(), Counter())
    write(
        "hostile_input",
        "Damaged files",
        ["input", "cases", *COLUMNS],
        [[kind, f"{own.total():,}", *(f"{own[column]:,}" for column in COLUMNS)] for kind, own in found.items()],
        [
            "A valid file with one seeded mutation each: bits flipped, ranges lost or spliced, numbers and texts made "
            "extreme, keys renamed, values nested deeply, lines and encodings changed; checkpoints get pickles with "
            f"code. Each is read with {CPU_SECONDS} s of processor time and {MEMORY_BYTES // 2**30} GiB of memory "
            "beyond the start.",
            "Refused: by one line that names the file or the setting. Accepted and right: a log, a vote and a "
            "checkpoint give nothing but what was written to them, and in other files Python's own readers find the "
            "same. All further columns are defects.",
        ],
        seeds=[SEED],
        results=results,
    )


if __name__ == "__main__":
    given = options(__doc__, cases=CASES, results=RESULTS)
    study(given.results, given.cases)
