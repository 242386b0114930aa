"""The valid inputs that are damaged, and the commands and loaders that read them."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
import typer
from pyarrow.parquet import write_table

import apportion.verl.command as verl_command
from apportion import AR3PO, VIP, Batch, Plan, Prompt, Rollout, Uniform
from apportion.__main__ import main
from apportion.cli.errors import usage_errors
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.predictors import DiscountedCounts
from apportion.records import prepare_log, read_streams, write_step
from apportion.verl import seam
from apportion.vote import Ballot
from apportion.vote.setup import make_setup
from benchmarks.hostile_judges import (
    Accepted,
    judge_allocate,
    judge_job,
    judge_nothing,
    judge_overrides,
    judge_study,
    judge_vote,
    judge_vote_plan,
    rows_of,
)
from benchmarks.hostile_mutations import BYTES, PICKLED, TEXT, Mutation
from benchmarks.small_study import study_text

ROOT = Path(__file__).resolve().parents[1]
FORMATS = ("TOML", "CSV", "JSONL", "JSON", "Parquet", "journals", "saved state", "options")
URL = "http://127.0.0.1:9/v1"
VOTE = ("--base-url", URL, *["--model", "tiny", "--max-samples", "4", "--equivalence", "exact"])


@dataclass(frozen=True)
class Seed:
    """A valid input: files by their path, the one that is damaged ("" for the command line), and the arguments."""

    files: Mapping[str, bytes]
    victim: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """What reads the damaged input.

    ``act`` is called with the arguments in the working directory, and ``judge`` says what is wrong with an accepted
    case. Files may be written below ``writes`` and to the option ``--out``. A command that ``talks`` may write
    to stderr although it succeeds: progress, or a warning about a setting. The ``share`` is of the format's cases.
    """

    format: str
    command: str
    seeds: Sequence[Seed]
    judge: Callable[[Accepted], str]
    mutations: tuple[Mutation, ...] = TEXT
    act: Callable[[Sequence[str]], object] | None = None
    writes: tuple[str, ...] = ()
    talks: bool = False
    share: float = 1.0

    def run(self, arguments: Sequence[str]) -> None:
        """Run the target in this process."""
        (self.act or command_line)(arguments)


def command_line(arguments: Sequence[str]) -> None:
    """Run ``apportion`` with ``arguments``."""
    sys.argv = ["apportion", *arguments]
    main()


def make_targets(base: Path, folder: Path, port: int) -> list[Target]:
    """Return all targets. Valid files are made in ``folder``; a scripted server listens on ``port``."""
    return [
        *_toml_targets(base),
        *_table_targets(base),
        *_vote_targets(port),
        *_saved_targets(base, folder),
        *_option_targets(base),
    ]


def _toml_targets(base: Path) -> Iterator[Target]:
    default = (ROOT / "apportion" / "lab" / "study" / "default.toml").read_text(encoding="utf-8")
    small, own = study_text(base, 160), {"prompts.jsonl": PROMPTS}
    texts = (small, _label_free(base, "prompts.jsonl"), default.replace('base = "hard"', f'base = "{base}"'))
    studies = [Seed(own | {"study.toml": text.encode()}, "study.toml", PLANNED) for text in texts]
    yield Target("TOML", "lab --dry-run", studies, judge_study)
    begun = "runs/small/config.toml"
    yield Target(
        "TOML",
        "lab --resume --dry-run",
        [Seed({begun: text.encode()}, begun, RESUMED) for text in (small, default.replace('"hard"', '"small"', 1))],
        lambda case: judge_study(Accepted([*case.arguments, begun], case.folder, case.out, case.err)),
    )
    yield Target("TOML", "trl --dry-run", [_job(base, text) for text in JOBS], judge_job, talks=True)


def _label_free(base: Path, prompts: str) -> str:
    text = (ROOT / "examples" / "label_free.toml").read_text(encoding="utf-8")
    return text.replace("examples/prompts.jsonl", prompts).replace('"medium"', f'"{base}"')


PROMPTS = (ROOT / "examples" / "prompts.jsonl").read_bytes()
PLANNED = ("lab", "study.toml", "--dry-run")
RESUMED = ("lab", "--name", "small", "--resume", "--dry-run")
TRAINING = """
[training]
learning_rate = 1e-3
max_steps = 4
max_completion_length = 12
num_generations = 4
per_device_train_batch_size = 8
gradient_accumulation_steps = 2
save_steps = 2
use_cpu = true
"""
JOBS = (
    """model = "BASE"
algorithm = "grpo"
weighting = "prompt"
[data]
path = "questions.jsonl"
template = "plain"
[verifier]
name = "exact"
[allocator]
name = "hora"
pre_rollouts = 2
rollouts_per_prompt = 4
high = 8
"""
    + TRAINING,
    """model = "BASE"
algorithm = "rloo"
[data]
path = "questions.jsonl"
template = "{question}"
limit = 8
seed = 3
[verifier]
name = "exact"
[allocator]
name = "vip"
low = 3
high = 12
rollouts_per_prompt = 4
predictor = { name = "counts", discount = 0.8 }
"""
    + TRAINING,
)


def _job(base: Path, text: str, victim: str = "job.toml", data: str = "questions.jsonl", content: bytes = b"") -> Seed:
    job = text.replace("BASE", str(base)).replace("questions.jsonl", data).encode()
    files = {"job.toml": job, "questions.jsonl": PROMPTS} | ({data: content} if content else {})
    return Seed(files, victim, ("trl", "job.toml", "--dry-run"))


def _table_targets(base: Path) -> Iterator[Target]:
    """Tables that ``allocate`` reads, and questions that ``vote``, ``lab`` and ``trl`` read."""
    for kind, write in (("CSV", _csv), ("JSONL", _jsonl), ("Parquet", _parquet)):
        suffix = kind.lower()
        mutations = BYTES if kind == "Parquet" else TEXT
        table, name = f"table.{suffix}", f"questions.{suffix}"
        line = f"allocate --budget {{}} --method {{}} --low {{}} --high 12 --json --out counts.csv --input {table}"
        tables = [
            Seed({table: write(rows)}, table, tuple(line.format(budget, method, low).split()))
            for method, low, budget, rows in TABLES
        ]
        yield Target(kind, "allocate", tables, judge_allocate, mutations, share=2.0)
        planned = ("vote", *VOTE, "--questions", name, *["--out", "a.jsonl", "--dry-run", "--json"])
        votes = [Seed({name: write(rows)}, name, planned) for rows in (QUESTIONS, LEDGER)]
        yield Target(kind, "vote --dry-run", votes, judge_vote_plan, mutations)
        if kind == "Parquet":
            continue
        study = Seed({"study.toml": _label_free(base, name).encode(), name: write(LEDGER)}, name, PLANNED)
        yield Target(kind, "lab --dry-run", [study], _judge_prompts, mutations, share=0.5)
        job = _job(base, JOBS[0], name, name, write(LEDGER))
        yield Target(kind, "trl --dry-run", [job], judge_job, mutations, talks=True, share=0.25)


QUESTIONS = [
    {"id": f"q{n}", "prompt": f"What is {n} times {n + 3}, \u00e9tudiant?", "answer": str(n * (n + 3))}
    for n in range(6)
]
LEDGER = [json.loads(line) for line in PROMPTS.decode().splitlines()]
TABLES: tuple[tuple[str, int, int, list[dict[str, Any]]], ...] = (
    ("vip", 3, 40, [{"id": f"p{n}", "success": round(0.05 + 0.09 * n, 2)} for n in range(8)]),
    ("hora", 4, 64, [{"id": n, "successes": n % 4, "trials": 4} for n in range(8)]),
    ("uniform", 3, 40, [{"success": 0.5, "id": f"text {n}", "note": "a, b"} for n in range(5)]),
)


def _judge_prompts(case: Accepted) -> str:
    """Check that the plan has as many prompts as the table has rows, each with a prompt of its own."""
    prompts = [row.get("prompt") for row in rows_of(next(case.folder.glob("questions.*")))]
    if len(set(prompts)) < len(prompts) or not all(isinstance(each, str) for each in prompts):
        return "a prompt is missing or there twice"
    return "" if f"{len(prompts)} for training" in case.out else f"the plan has not {len(prompts)} prompts"


def _vote_targets(port: int) -> Iterator[Target]:
    """The answers of earlier runs, the settings beside them, and replies of a server."""
    made = json.dumps(make_setup(URL, "tiny", max_samples=4, equivalence="exact").resolved(), indent=1).encode()
    answers = "".join(f"{_ballot(row).to_json()}\n" for row in QUESTIONS[:4]).encode()
    named = ("--questions", "questions.jsonl", "--out", "answers.jsonl", "--json")
    questions = {"questions.jsonl": _jsonl(QUESTIONS)}
    files = questions | {"answers.jsonl": answers, "answers.run.json": made + b"\n"}
    other = files | {"answers.jsonl": b"".join(answers.splitlines(keepends=True)[:2])}
    planned = ("vote", *VOTE, *named, "--dry-run")
    both = [Seed(each, "answers.jsonl", planned) for each in (files, other)]
    yield Target("journals", "vote --dry-run", both, judge_vote_plan, share=2.0)
    yield Target("JSON", "vote --dry-run", [Seed(files, "answers.run.json", planned)], judge_vote_plan)
    served = [each.replace(URL, f"http://127.0.0.1:{port}/FOLDER") for each in VOTE]
    asked = ("vote", *served, *named, *["--max-retries", "1", "--request-timeout", "5"])
    reply = {"reply.json": json.dumps(REPLY).encode()}
    writes = tuple(f"answers.{end}" for end in ("jsonl", "samples.jsonl", "run.json", "lock"))
    for kind, command, seed, share in (
        ("journals", "vote", Seed(files | {"answers.run.json": made} | reply, "answers.jsonl", asked), 0.5),
        ("JSONL", "vote", Seed(questions | reply, "questions.jsonl", asked), 0.25),
        ("JSON", "vote, replies", Seed(questions | reply, "reply.json", asked), 0.5),
    ):
        yield Target(kind, command, [seed], judge_vote, writes=writes, talks=True, share=share)


REPLY = {
    "id": "reply",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is \\boxed{18}."}}
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
}


def _ballot(row: Mapping[str, Any]) -> Ballot:
    question, gold = Prompt(row["prompt"]), row["answer"]
    counts = {"samples": 4, "failed": 0, "unparsed": 1, "cancelled": 0, "waves": 2, "texts": 4}
    tokens = {"prompt_length": 10, "prompt_tokens": 40, "completion_tokens": 80}
    return Ballot(
        row["id"], question.id, gold, gold, True, {gold: 2, "7": 1}, **counts, stopped="rule", **tokens, seconds=1.5,
        disagreement=0.01,
    )  # fmt: skip


def _saved_targets(base: Path, folder: Path) -> Iterator[Target]:
    """Rollout logs and the files of a lab run.

    The checkpoints of TRL and verl are not here: ``apportion.engines.saved_state`` reads them as it reads the lab's.
    """
    yield _rollout_log(folder / "log")
    yield from _lab_checkpoints(base, folder / "lab")
    config, study = (base / "config.json").read_bytes(), study_text(Path("base"), 160).encode()
    seed = Seed({"base/config.json": config, "study.toml": study}, "base/config.json", PLANNED)
    yield Target("JSON", "lab --dry-run", [seed], judge_study, share=0.5)


def _reading(load: Callable[[str], Any], expected: Mapping[str, Any]) -> Callable[[Sequence[str]], None]:
    """Return what loads the state that its argument names, and says whether it is as it was."""

    def act(arguments: Sequence[str]) -> None:
        (name,) = arguments
        with usage_errors_as_exit(ValueError):
            found = load(name)
            same = found == expected[name]
            print("as it was" if same else f"loaded another state: {found} and not {expected[name]}")

    return act


def _contents(folder: Path, prefix: str) -> dict[str, bytes]:
    return {f"{prefix}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


def _rollout_log(folder: Path) -> Target:
    write_log(folder, 2)
    files = _contents(folder, "log")
    act = _reading(lambda name: digest(read_streams(Path(name))), {"log": digest(read_streams(folder))})
    seeds = [Seed(files, name, ("log",)) for name in files]
    return Target("Parquet", "rollout log", seeds, judge_nothing, BYTES, act, share=1.5)


def _lab_checkpoints(base: Path, folder: Path) -> Iterator[Target]:
    training = Training(
        base=str(base),
        problems=16,
        prompts_per_step=4,
        rollouts=160,
        evaluate_every=80,
        checkpoint_every=2,
        held_out=10,
    )
    makers = {"ar3po": lambda: AR3PO(stages=2, rollouts_per_stage=2, reuse="recompute"), "vip": _vip}

    def load(run: Path, name: str) -> tuple[str, str]:
        return _digest_of_trainer(Trainer(training, makers[name](), 0, run)), digest(
            (run / "metrics.jsonl").read_bytes()
        )

    files, expected = {}, {}
    for name, make in makers.items():
        Trainer(training, make(), 0, folder / name).run(lambda record: record["step"] < 4)
        files[name] = {
            f"{name}/{each}": (folder / name / each).read_bytes() for each in ("checkpoint.pt", "metrics.jsonl")
        }
        expected[name] = load(folder / name, name)
    act, writes = _reading(lambda name: load(Path(name), name), expected), tuple(makers)
    for command, victim, mutations, share in (
        ("lab checkpoint", "checkpoint.pt", PICKLED, 1.5),
        ("lab metrics", "metrics.jsonl", TEXT, 0.5),
    ):
        seeds = [Seed(own, f"{name}/{victim}", (name,)) for name, own in files.items()]
        yield Target("saved state", command, seeds, judge_nothing, mutations, act, writes, share=share)


def _option_targets(base: Path) -> Iterator[Target]:
    """Command lines; a file that they name is valid."""
    tables = {"table.csv": _csv(TABLES[0][3]), "hora.csv": _csv(TABLES[1][3])}
    questions, study = {"questions.jsonl": _jsonl(QUESTIONS)}, {"study.toml": study_text(base, 160).encode()}
    vote = [("vote", *VOTE, *shlex.split(f"--questions questions.jsonl --out answers.jsonl --dry-run --json {more}"))
            for more in VOTE_LINES]  # fmt: skip
    job = _job(base, JOBS[0])
    trl = (*job.arguments, *JOB_LINE.split())
    for command, files, lines, judge, more in (
        ("allocate", tables, map(str.split, ALLOCATE_LINES), judge_allocate, {"share": 1.5}),
        ("vote --dry-run", questions, vote, judge_vote_plan, {"share": 1.5}),
        ("lab --dry-run", study, [(*PLANNED, *line.split()) for line in LAB_LINES], judge_study, {"writes": ("runs",)}),
        ("trl --dry-run", job.files, [trl], judge_job, {"writes": ("runs",), "talks": True, "share": 0.25}),
        ("verl", {}, [(*line.split(), *VERL_LINE.split()) for line in VERL_LINES], judge_overrides,
         {"act": _verl, "writes": ("outputs",), "talks": True, "share": 0.15}),
    ):  # fmt: skip
        yield Target("options", command, [Seed(files, "", tuple(line)) for line in lines], judge, **more)


ALLOCATE_LINES = (
    "allocate --budget 40 --low 3 --high 12 --json --input table.csv --out counts.csv",
    "allocate --budget 64 --method hora --successes 1,2,3 --trials 4,4,4 --low 4 --json",
    "allocate --budget 24 --estimator dr_grpo --success 0.1,0.5,0.9 --high 12 --json",
    "allocate --budget 24 --method uniform --success 0.1,0.5,0.9 --json",
)
VOTE_LINES = (
    "--limit 3",
    "--rule adaptive_consistency_beta --set confidence=0.9 --temperature 0.7 --top-p 0.9 --price-input 1.5 "
    "--price-output 2 --deadline 60 --extra-body '{\"top_k\": 20}' --concurrency 4",
)
LAB_LINES = (
    "--set training.rollouts=320 --set allocators.vip.high=10 --name small",
    "--allocator hora --set training.learning_rate=1e-4 --set seeds=[1,2]",
)
JOB_LINE = "--set training.max_steps=8 --set allocator.high=10 --set data.limit=20 --name own"
VERL_LINES = (
    "verl allocation=vip allocation.allocator.low=4 allocation.retries=2",
    "verl allocation=hora allocation.allocator.high=16",
)
VERL_LINE = (
    "actor_rollout_ref.rollout.n=8 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "trainer.resume_mode=disable actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
)


def _verl(arguments: Sequence[str]) -> None:
    """Check a configuration of verl, as in an environment without TRL, and train nothing."""
    verl_command.run_ppo = lambda config, task_runner_class: None
    seam.is_trl_available = lambda: False
    warnings.simplefilter("ignore", UserWarning)  # verl warns of valid configurations, too
    command_line(arguments)


@contextmanager
def usage_errors_as_exit(*kinds: type[Exception]) -> Iterator[None]:
    """End the process as a command ends if one of these errors is raised in the block."""
    try:
        with usage_errors(*kinds):
            yield
    except typer.Exit as exit:
        sys.exit(exit.exit_code)


def digest(value: Any) -> str:
    """Return a hash of a state: tensors, arrays, generators, records and plain values, with their types."""
    return hashlib.blake2b(repr(plain(value)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def plain(value: Any) -> Any:
    """Return a state as nested tuples of the names of types and plain values."""
    kind = type(value).__name__
    if value is None or isinstance(value, (str, int, float, bytes, np.generic)):
        return kind, value
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return kind, str(value.dtype), value.shape, plain(value.tolist()) if value.dtype == object else value.tobytes()
    if isinstance(value, Mapping):
        return kind, [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [plain(item) for item in value]
        return kind, items if isinstance(value, (list, tuple)) else sorted(items, key=repr)
    if is_dataclass(value):
        return kind, [plain(getattr(value, field.name, None)) for field in fields(value)]
    return kind, plain(vars(value))


def _digest_of_trainer(trainer: Trainer) -> str:
    states = [each.state_dict() for each in (trainer.learner, trainer.sampler, trainer.allocator, trainer.selector)]
    return digest([*states, trainer.steps, trainer.asked, trainer.evaluations])


def _vip() -> VIP:
    return VIP(rollouts_per_prompt=4, low=3, high=12, predictor=DiscountedCounts())


def write_log(folder: Path, steps: int) -> None:
    """Write a rollout log."""
    prepare_log(folder)
    for step in range(steps):
        batch = _observed_batch(step)
        write_step(folder, step, batch, Uniform(4).groups(batch))


def _observed_batch(step: int) -> Batch:
    prompts = [Prompt(f"prompt {q}") for q in range(4)]
    rng = np.random.default_rng(step)
    rollouts = [
        [Rollout(bool(rng.random() < 0.5), f"{q}", completion=f"text {q} {n}", tokens=5 + n) for n in range(4)]
        for q in range(4)
    ]
    return Uniform(4).start(prompts).add(Plan(np.full(4, 4)), rollouts)


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    lines = [",".join(rows[0])]
    lines += [",".join(f'"{cell}"' if "," in str(cell) else str(cell) for cell in row.values()) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def _jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    write_table(pyarrow.Table.from_pylist(list(rows)), sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


class _Replies(BaseHTTPRequestHandler):
    """Answers a request to ``FOLDER/chat/completions`` with the bytes of ``FOLDER/reply.json``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = Path(self.path.removesuffix("/chat/completions")) / "reply.json"
        content = path.read_bytes() if path.is_file() else b"{}"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Write no log."""


class _Server(ThreadingHTTPServer):
    """A server whose clients may leave at any moment."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""


@contextmanager
def replies() -> Iterator[int]:
    """Serve replies on loopback from a process of its own; yield its port."""
    server = _Server(("127.0.0.1", 0), _Replies)
    process = get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    port = server.server_address[1]
    server.server_close()
    try:
        yield port
    finally:
        os.kill(process.pid, 9)
        process.join()
