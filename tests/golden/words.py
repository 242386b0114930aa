"""What the library says: help, text and JSON of every command, messages of bad settings, names in states.

Commands run in this process, in an empty folder, at a width of 100 columns. Times, dates and the version
are replaced by words.
"""

import contextlib
import csv
import io
import json
import re
import shutil
import tempfile
import warnings
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from random import Random
from typing import get_args, get_type_hints

import numpy as np
from typer.main import get_command
from typer.testing import CliRunner

import apportion
from apportion.allocators import ALLOCATORS, Allocator
from apportion.baselines import BASELINES
from apportion.cli import app
from apportion.config import build
from apportion.predictors import PREDICTORS
from apportion.selection import SELECTORS
from tests.builders import write_jsonl
from tests.cases import lines
from tests.golden.decisions import fed, made, pool
from tests.golden.old import HERE
from tests.rules import small_settings

WIDTH = "100"

COMMANDS = """
    allocate --success 0.1,0.5,0.9 --budget 24 --high 12
    allocate --method hora --successes 0,2,4 --trials 4,4,4 --budget 24 --high 12
    allocate --success 0.1,0.5,0.9 --budget 24 --estimator dr_grpo --json
    allocate --success 0.1,0.5 --budget 2
    allocate --input rates.csv --budget 30
    diagnose counts.jsonl
    diagnose counts.jsonl --json
    diagnose graded.jsonl
    diagnose plain.csv
    diagnose log
    diagnose nothing.jsonl
    diagnose broken.jsonl
    evaluate counts.jsonl
    evaluate old/answers.jsonl --k 1 4 24
    evaluate old/answers.jsonl --json
    evaluate graded.jsonl
    evaluate counts.jsonl --k 4096
    replay counts.jsonl --rules vip hora ar3po mixed --batch 8
    replay counts.jsonl --rules vip uniform mopps --batch 8 --json
    replay counts.jsonl --rules mixed spo --batch 8 --seeds 2 --json
    replay plain.csv --rules dapo
    replay counts.jsonl --rules vap
    forecast counts.jsonl --group-size 4 --estimators grpo,reinforce
    forecast old/answers.jsonl --json
    forecast graded.jsonl
    forecast --base-url http://127.0.0.1:9/v1 --model m --questions questions.jsonl --out f.jsonl --dry-run
    import plain.csv --out imported
    import graded.jsonl --out imported_graded --json
    import verl --out imported_verl
    import trl --out imported_trl
    import unknown.jsonl --out imported_unknown
    report imported --json
    report old/answers.jsonl --json
    report imported counts.jsonl --json --rules vip --advice
    watch imported --until-step 2 --timeout 5
    watch imported --until-step 2 --timeout 5 --json
    revote old/answers.jsonl --rule fixed
    revote old/answers.jsonl --rule posterior_predictive --set eps=0.05 --json
    revote old/answers.jsonl --rule optpo --max-samples 64
    vote --base-url http://127.0.0.1:9/v1 --model m --questions questions.jsonl --out answers.jsonl --dry-run
    vote --base-url http://127.0.0.1:9/v1 --model m --questions questions.jsonl --out a.jsonl --rule fixd
"""
"""Every command that needs no model and no server. Later ones read what earlier ones wrote."""

HIDDEN = (
    (re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?"), "DATE"),
    (re.compile(re.escape(apportion.__version__)), "VERSION"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds|minutes)\b"), "TIME"),
    (re.compile(r"(?m)(?<=  )\d+\.\d$"), "SECONDS"),
    (re.compile(r"\d[\d,]* rollouts per hour|[\d,.]+ */h\b"), "PACE"),
)

VARYING = re.compile("second|time|per_hour|written|version")
"""Keys of JSON whose values differ from run to run."""


def hidden(text):
    """Return ``text`` without what differs from run to run."""
    for pattern, word in HIDDEN:
        text = pattern.sub(word, text)
    return text


def write_inputs():
    """Write small logs of every form into the present folder, with seeded outcomes."""
    Path("verl").mkdir()
    Path("trl").mkdir()
    draw = Random("logs")
    rates = [draw.random() ** 2 for _ in range(24)]
    rates[:2] = [0.0, 1.0]

    def right(q, n=8):
        return sum(draw.random() < rates[q] for _ in range(n))

    texts = [f"What is {q} + {q}?" for q in range(24)]
    counts = [{"id": f"q{q}", "prompt": texts[q], "correct_of_8": [right(q) for _ in range(4)]} for q in range(24)]
    write_jsonl(Path("counts.jsonl"), [row | {"rate": round(rates[q], 3)} for q, row in enumerate(counts)])
    rollouts = [
        {"step": step, "prompt": texts[q], "completion": f"It is {i}.", "reward": float(draw.random() < rates[q])}
        for step in range(3)
        for q in range(step, step + 8)
        for i in range(4)
    ]
    with open("plain.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rollouts[0])
        table.writeheader()
        table.writerows(rollouts)
    write_jsonl(
        Path("graded.jsonl"),
        [row | {"reward": round(draw.random() * rates[i % 24], 3)} for i, row in enumerate(rollouts)],
    )
    for step in range(1, 4):
        rows = [row for row in rollouts if row["step"] == step - 1]
        dump = [
            {"input": row["prompt"], "output": row["completion"], "gts": "0", "score": row["reward"], "step": step}
            for row in rows
        ]
        write_jsonl(Path(f"verl/{step}.jsonl"), dump)
        import pyarrow.parquet  # noqa: PLC0415 - an extra that reports need

        table = [
            {
                "step": step,
                **{key: row[key] for key in ("prompt", "completion")},
                "judged": row["reward"],
                "advantage": 0.0,
            }
            for row in rows
        ]
        table = pyarrow.Table.from_pylist(table)
        pyarrow.parquet.write_table(table, f"trl/completions_{step:05d}.parquet")
    write_jsonl(Path("unknown.jsonl"), [{"one": 1, "two": 2}])
    Path("broken.jsonl").write_text('{"step": 0, "prompt": "a", "reward": 1}\n{"step": 0, "pro')
    Path("rates.csv").write_text("success\n0.1\n0.5\n0.9\n")
    write_jsonl(Path("questions.jsonl"), [{"question": text, "answer": str(2 * q)} for q, text in enumerate(texts[:3])])
    shutil.copytree(HERE / "log", "log")
    Path("old").mkdir()
    for path in (HERE / "vote").iterdir():
        Path("old", path.name).write_bytes(path.read_bytes())


def invoked(arguments):
    """Return what a command says, JSON as data, and its exit code."""
    run = CliRunner().invoke(app, arguments, env={"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1"})
    said = hidden(run.stdout)
    if "--json" in arguments and not run.exit_code:
        lines = run.stdout.splitlines() if "watch" in arguments else [run.stdout]
        said = [json.loads(line) for line in lines]
    return {"exit": run.exit_code, "said": timeless(said), "errors": hidden(run.stderr)}


def timeless(value):
    """Return JSON data without the times and paces in it."""
    if isinstance(value, dict):
        return {key: None if VARYING.search(key) else timeless(each) for key, each in value.items()}
    if isinstance(value, list):
        return [timeless(each) for each in value]
    return hidden(value) if isinstance(value, str) else value


def commands():
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_inputs()
        return {command: invoked(command.split()) for (command,) in lines(COMMANDS)}


def helps():
    """The help of the program and of every command but verl's, which Hydra prints and whose import changes torch."""
    names = [name for name in get_command(app).list_commands(None) if name != "verl"]
    return {name or "apportion": invoked([*filter(None, [name]), "--help"])["said"] for name in ("", *names)}


ELSEWHERE = ("apportion.verl.", "apportion.trl.axolotl", "apportion.__main__")
"""Modules that are not imported here: importing verl changes torch for the whole process."""


def settings_classes():
    """Return every public dataclass of the package with a setting that is a number, a flag or a text."""
    found = {}
    for module in walk_packages(apportion.__path__, "apportion."):
        if module.name.startswith(ELSEWHERE) and not module.name.startswith("apportion.verl.coordinator"):
            continue
        loaded = import_module(module.name)
        for name, value in vars(loaded).items():
            own = isinstance(value, type) and value.__module__ == module.name and not name.startswith("_")
            if own and is_dataclass(value) and hasattr(value, "__post_init__"):
                found[f"{value.__module__}.{name}"] = value
    return [found[name] for name in sorted(found)]


BAD = {bool: ("yes",), int: (-1, "x"), float: (-1.0, float("nan")), str: ("?",)}
"""Values that no field of a kind takes, the first of which is refused counts."""


def messages():
    """What each class says of a bad value of each field, for classes that need no other settings."""
    found = {}
    for cls in settings_classes():
        try:
            cls()
            hints = get_type_hints(cls)
        except (TypeError, ValueError, NameError):  # it needs settings, or a framework's types
            continue
        for each in fields(cls):
            kinds = (hints[each.name], *get_args(hints[each.name]))
            kind = next((kind for kind in BAD if kind in kinds), None)
            for bad in BAD[kind] if each.init and kind else ():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        cls(**{each.name: bad})
                    except (ValueError, TypeError) as error:
                        found[f"{cls.__module__}.{cls.__name__}.{each.name} = {bad!r}"] = str(error)
                        break
    return found


def shape(value):
    """Return the names and kinds in a state: dictionaries by key, lists by the kind of their first entry."""
    if isinstance(value, dict):
        numbered = value and all(re.fullmatch(r"[0-9a-f]{32}|\d+", str(key)) for key in value)
        return {"*": shape(next(iter(value.values())))} if numbered else {key: shape(value[key]) for key in value}
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}, {value.ndim} dimensions"
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(shape(each) for each in value[:1])]
    if is_dataclass(value):
        return {"kind": type(value).__name__} | {each.name: shape(getattr(value, each.name)) for each in fields(value)}
    return type(value).__name__


def states():
    """The names and kinds in the state of every learner after two batches."""
    found = {}
    batches = list(fed(False))[2:4]
    for kind, registry in (("predictor", PREDICTORS), ("baseline", BASELINES), ("selector", SELECTORS)):
        for name, cls in registry.items():
            learner = made(cls)
            learner.prepare(list(pool()))
            for batch in batches:
                getattr(learner, "update" if hasattr(learner, "update") else "observe")(batch)
            found[f"{kind} {name}"] = shape(learner.state_dict())
    for name in ALLOCATORS:
        allocator = build(Allocator, small_settings(name))
        for batch in batches:
            allocator.observe(batch)
        found[f"allocator {name}"] = shape(allocator.state_dict())
    return found


def record():
    """Return every word, as JSON data."""
    with contextlib.redirect_stderr(io.StringIO()):
        return {part.__name__: part() for part in (helps, commands, messages, states)}
