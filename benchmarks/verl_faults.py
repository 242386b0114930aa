"""Stop and kill verl's workers, its trainer and its storage at random moments, and see that every run goes on or ends.

    python -m benchmarks.verl_faults               # about 100 faults in real runs of verl on a CPU, with two workers
    python -m benchmarks.verl_faults --faults 10

The processes of a run are found by their working folder.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from pathlib import Path
from random import Random
from statistics import median

import psutil

from benchmarks.common import RESULTS, options, write
from tests.verl import harness
from tests.verl.cpu import assets as made
from tests.verl.runs import FAULTY, HORA, SAVED, allocated

FAULTS, SEED, FAULTS_A_RUN = 100, 0, 12
SILENT_SECONDS = 5
GOES_ON_SECONDS = 90.0
"""Bound of the time from a fault to the end of the next whole step: silence, a restart, and two slow steps."""
ENDS_SECONDS = 60.0
"""Bound of the time from a fatal fault to the end of the run and of all its processes."""
HUNG_SECONDS = 300.0
"""A run without a new step for so long after a fault is hung. It is killed."""
START_SECONDS = 180.0
PROMPTS = 16
COLUMNS = (
    "fault", "tried", "went on", "ended with its error", "ended otherwise", "hung", "median s", "longest s",
    "right and within the bound",
)  # fmt: skip
OUTCOMES = ("went on", "ended", "ended otherwise", "hung")
SETTINGS = (
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "reward.custom_reward_function.name=compute_faulty",
    "trainer.val_before_train=True",
    "trainer.test_freq=1",
)
WRITING = ("worker_writing", "worker_committing", "worker_committed")


@dataclass
class LiveRun:
    """A run of verl in a thread, its folder, and what its processes wrote down."""

    folder: Path
    assets: Path
    python: str
    overrides: Sequence[str]
    done: harness.Run | None = None
    ended: float = 0.0

    def start(self):
        (self.folder / "records" / "faults").mkdir(parents=True, exist_ok=True)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        self.done = harness.run(
            self.folder, self.assets, self.overrides, python=self.python, seconds=3600, until=self.folder / "end"
        )
        self.ended = time.monotonic()

    @property
    def steps(self):
        """The steps of training that were logged."""
        return [line["step"] for line in self.logged if line["step"] > 0]

    @property
    def logged(self):
        path = self.folder / "records" / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def phase(self):
        """What the trainer does: "round", "training" or "validation"; "" before it has begun."""
        path = self.folder / "records" / "phases"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return lines[-1] if lines else ""

    def processes(self, title):
        """Return the processes of this run whose command line begins with ``title``."""
        return [each.pid for each in self._found() if " ".join(each.info["cmdline"] or ()).startswith(title)]

    def all_processes(self):
        return [each.pid for each in self._found()]

    def _found(self):
        return [each for each in psutil.process_iter(["cwd", "cmdline"]) if each.info["cwd"] == str(self.folder)]

    def ask(self, fault, prompts):
        """Have the next rollout or reward of these prompts suffer ``fault``; ``forget`` takes what is left back."""
        paths = [self.folder / "records" / "faults" / f"{fault}_{index}.0" for index in prompts]
        for path in paths:
            path.touch()
        return paths

    def forget(self):
        for path in (self.folder / "records" / "faults").iterdir():
            path.unlink(missing_ok=True)

    def end(self):
        """Kill what is left of the run."""
        (self.folder / "end").touch()
        self.thread.join(30)
        for pid in self.all_processes():
            send(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Fault:
    """A fault by name, and its acts in order, by whom they strike. It comes in a random moment, or in one of ``phase``.

    One with an ``error`` ends its run, with this error in its output. If it is to be ``resumed``, its steps must be the
    same.
    """

    name: str
    acts: tuple[tuple[str, signal.Signals | float | str], ...]
    phase: str = ""
    error: str = ""
    resumed: bool = False


@dataclass
class Struck:
    """A fault that happened: what came of it, after how many seconds, and what went wrong."""

    fault: str
    outcome: str
    seconds: float
    within: bool
    wrong: list[str] = field(default_factory=list)


KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
RECOVERED = (
    Fault("SIGKILL to a worker", (("one", KILL),)),
    Fault("SIGSTOP to a worker", (("one", STOP),)),
    Fault("SIGSTOP to a worker, SIGCONT after 2 s", (("one", STOP), ("wait", 2), ("one", CONTINUE))),
    Fault("SIGSTOP to a worker, SIGCONT after 8 s", (("one", STOP), ("wait", 8), ("one", CONTINUE))),
    Fault("SIGKILL to a worker in a validation", (("one", KILL),), phase="validation"),
    Fault("SIGSTOP to a worker in a validation", (("one", STOP),), phase="validation"),
    Fault("SIGKILL to a worker that publishes", (("publishing", "kills"),)),
    Fault("SIGSTOP to a worker that publishes", (("publishing", "stops"),)),
    Fault("SIGKILL to both workers", (("one", KILL), ("wait", 0.2), ("other", KILL))),
    Fault("SIGSTOP to both workers", (("one", STOP), ("wait", 0.2), ("other", STOP))),
    Fault("SIGKILL to one worker, SIGSTOP to the other", (("one", KILL), ("wait", 0.2), ("other", STOP))),
    Fault(
        "SIGKILL to a worker, and rewards that raise", (("four prompts", "reward_fails"), ("wait", 0.5), ("one", KILL))
    ),
    Fault(
        "SIGSTOP to the trainer, SIGCONT after 8 s",
        (("trainer", STOP), ("wait", SILENT_SECONDS + 3), ("trainer", CONTINUE)),
    ),
)
STORAGE, CONTROLLER = "ray::SimpleStorage", "ray::TransferQueueController"
FATAL = (
    Fault("SIGKILL to the trainer", (("trainer", KILL),), error="ActorDied", resumed=True),
    Fault(
        "both workers gone for good",
        (("all prompts", "ends_worker"),),
        error="agent-loop workers must live, got none of 2",
    ),
    Fault("an allocator that raises", (("all prompts", "reward_grades"),), error="rewards must be 0 or 1 for hora"),
    Fault("SIGKILL to TransferQueue's storage", ((STORAGE, KILL),), error="TransferQueueStorageUnit#0 must live"),
    Fault("SIGKILL to TransferQueue's controller", ((CONTROLLER, KILL),), error="TransferQueueController must live"),
)


def workers(run):
    """Return the processes of the agent-loop workers."""
    return sorted(run.processes("ray::AllocatedWorker"))


def strike(run, fault, rng):
    """Do a fault, and return the time at which it began."""
    began, pids = time.monotonic(), workers(run)
    rng.shuffle(pids)
    trainer = int((run.folder / "records" / "trainer").read_text("utf-8"))
    known = {"one": pids[:1], "other": pids[1:], "trainer": [trainer]}
    for who, what in fault.acts:
        if isinstance(what, signal.Signals):
            for pid in known.get(who) or run.processes(who):
                send(pid, what)
        elif isinstance(what, str):
            places = {"all prompts": range(PROMPTS), "four prompts": rng.sample(range(PROMPTS), 4)}
            if who in places:
                run.ask(what, places[who])
                continue
            # after it wrote rows, in a commit, or before it says that it committed
            names = [f"{what}_{name}" for name in WRITING if f"{what}_{name}" != "stops_worker_committing"]
            [path] = run.ask(rng.choice(names), [rng.randrange(PROMPTS)])
            _wait(lambda path=path: not path.exists() or run.done is not None, HUNG_SECONDS)
            began = time.monotonic()
        else:
            time.sleep(what)
    return began


def study(faults=FAULTS, fatal=3, results=RESULTS, seed=SEED):
    """Make ``faults`` faults that a run survives, and ``fatal`` of each kind that ends it. Write the table."""
    found: list[Struck] = []
    rng, runs, order = Random(seed), count(), cycle(RECOVERED)
    with tempfile.TemporaryDirectory() as name, harness.warmed() as python:
        base = Path(name)
        (base / "assets").mkdir()
        assets = made.write(base / "assets")
        while len(found) < faults:
            chosen = [next(order) for _ in range(min(FAULTS_A_RUN, faults - len(found)))]
            found += _survive(_live(base / f"run{next(runs)}", assets, python), chosen, rng)
        for fault in FATAL:
            for _ in range(fatal):
                found.append(_end(_live(base / f"run{next(runs)}", assets, python), fault, rng))
    write(
        "verl_faults",
        "Faults in runs of verl",
        COLUMNS,
        rows(found),
        [
            f"{len(found)} faults in {next(runs)} runs of verl on a CPU, with two workers, "
            f"`allocation.silent_seconds={SILENT_SECONDS}`, and a tiny policy. A fault came at a random moment after "
            "the run had recovered from the one before. Seconds are those until the next whole step was logged, or, "
            "for a fatal fault, until the run and all its processes had ended. The bounds are "
            f"{GOES_ON_SECONDS:g} s and {ENDS_SECONDS:g} s.",
            "A fault is wrong if a row that is trained on is of another step, twice there, of no group, or has another "
            "reward than its group says, or if rows are left over. "
            f"Wrong: {sum(bool(each.wrong) for each in found)} of {len(found)}.",
        ],
        seeds=[seed],
        cells={"faults": [asdict(each) for each in found]},
        results=results,
    )
    return found


def rows(found):
    """Return one row for each kind of fault, in order, and one for all."""
    names = list(dict.fromkeys(fault.name for fault in (*RECOVERED, *FATAL)))
    kinds = [[each for each in found if each.fault == name] for name in names]
    return [*(_row(own[0].fault, own) for own in kinds if own), _row("all", found)]


def _row(name, found):
    outcomes = [sum(each.outcome == outcome for each in found) for outcome in OUTCOMES]
    seconds = [each.seconds for each in found]
    within = sum(each.within and not each.wrong for each in found)
    return [name, *map(str, [len(found), *outcomes]), f"{median(seconds):.1f}", f"{max(seconds):.1f}", str(within)]


def outcome_of(fault, status, output, stepped):
    """Return what came of a fault: "went on", "ended" with its error, "ended otherwise", or "hung".

    ``status`` is that of the run, None if it has not ended; ``stepped`` whether a step followed.
    """
    if status is None:
        return "went on" if stepped and not fault.error else "hung"
    if fault.error and status != 0 and fault.error in output:
        return "ended"
    return "went on" if status == 0 and not fault.error else "ended otherwise"


def unsound(lines, step, batch=4):
    """Return what is wrong with the rows of a step: other prompts, rows twice or of no group, or wrong rewards."""
    own = [line for line in lines if not line["padding"]]
    expected = {index % PROMPTS for index in range(batch * (step - 1), batch * step)}
    wrong = [f"step {step} trains on prompt {index}" for index in {line["index"] for line in own} - expected]
    if len({line["key"] for line in own}) < len(own):
        wrong.append(f"step {step} has a row twice")
    groups: dict[str, list[int]] = {}
    for line in own:
        group = line["apportion"]
        groups.setdefault(group["group"], []).append(group["position"])
        if sum(line["rm_scores"]) != group["rewards"][group["position"]]:
            wrong.append(f"step {step} has a row of another reward than its group's")
    if any(len(set(positions)) < len(positions) for positions in groups.values()):
        wrong.append(f"step {step} has two rows at one position of a group")
    return wrong


def _live(folder, assets, python):
    folder.mkdir()
    steps, saving = "trainer.total_training_steps=100000", ("trainer.save_freq=5", SAVED)
    overrides = allocated(HORA, *FAULTY, *SETTINGS, steps, *saving, silent_seconds=SILENT_SECONDS)
    return LiveRun(folder, assets, python, overrides)


def _survive(run, faults, rng):
    """Make ``faults`` in one run, each at a random moment after it has gone on. End the run."""
    run.start()
    found: list[Struck] = []
    checked = 0
    _wait(lambda: len(run.steps) >= 1 or run.done is not None, START_SECONDS)
    for fault in faults:
        if run.done is not None:
            break
        struck = _strike(run, fault, rng)
        for step in run.steps[checked:]:
            text = (run.folder / "records" / f"rows_{step}.jsonl").read_text("utf-8")
            struck.wrong += unsound(map(json.loads, text.splitlines()), step)
            others = json.loads((run.folder / "records" / f"others_{step}.json").read_text("utf-8"))
            struck.wrong += [f"step {step} has {len(others)} rows left over"] if others else []
        checked = len(run.steps)
        found.append(struck)
        _show(struck, run, "went on")
        if struck.outcome != "went on":
            break
    run.end()
    return found


def _strike(run, fault, rng):
    """Make a fault and wait until a whole step has followed it."""
    _wait(lambda: len(workers(run)) == 2 or run.done is not None, START_SECONDS)
    time.sleep(rng.uniform(0, 4))
    if fault.phase:
        _wait(lambda: run.phase == fault.phase or run.done is not None, START_SECONDS)
        time.sleep(rng.uniform(0, 0.1))
    _wait(lambda: len(workers(run)) == 2 or run.done is not None, START_SECONDS)
    before = workers(run)
    began = strike(run, fault, rng)
    latest = max(run.steps, default=0)
    # the step in progress and the one after it, because the former may have been over but for its validation
    _wait(lambda: max(run.steps, default=0) > latest + 1 or run.done is not None, HUNG_SECONDS)
    seconds = time.monotonic() - began
    status = None if run.done is None else run.done.status
    outcome = outcome_of(fault, status, _output(run), max(run.steps, default=0) > latest + 1)
    run.forget()
    struck = Struck(fault.name, outcome, seconds, outcome == "went on" and seconds <= GOES_ON_SECONDS)
    if fault.name.endswith("SIGCONT after 8 s") and "trainer" not in fault.name:
        struck.wrong += [] if set(before) - set(workers(run)) else ["a worker that was declared lost still lives"]
    return struck


def _end(run, fault, rng):
    """Make a fatal fault in a run of its own, and wait until all its processes have ended."""
    run.start()
    enough = 7 if fault.resumed else 2  # a checkpoint is saved every fifth step
    _wait(lambda: len(run.steps) >= enough or run.done is not None, START_SECONDS)
    time.sleep(rng.uniform(0, 4))
    began = strike(run, fault, rng)
    _wait(lambda: run.done is not None, 4 * HUNG_SECONDS)
    _wait(lambda: not run.all_processes(), ENDS_SECONDS)
    seconds = time.monotonic() - began
    left = run.all_processes()
    outcome = outcome_of(fault, None if run.done is None else run.done.status, _output(run), stepped=False)
    wrong = [f"{len(left)} processes are left"] if left else []
    struck = Struck(fault.name, outcome, seconds, outcome == "ended" and seconds <= ENDS_SECONDS, wrong)
    _show(struck, run, "ended")
    run.end()
    if fault.resumed:
        struck.wrong += _differences_after_resume(run)
        print("resumed", struck.wrong, flush=True)
    return struck


def _differences_after_resume(run):
    """Resume a run, and return which of the steps that it repeats differ, or that it does not go on."""
    before = {step: _content(run, step) for step in run.steps}
    (run.folder / "end").unlink()
    (run.folder / "records" / "metrics.jsonl").unlink()
    resumed = LiveRun(run.folder, run.assets, run.python, (*run.overrides, "trainer.resume_mode=auto"))
    resumed.start()
    latest = max(before)
    _wait(lambda: max(resumed.steps, default=0) > latest or resumed.done is not None, HUNG_SECONDS)
    went_on = max(resumed.steps, default=0) > latest
    resumed.end()
    wrong = [f"step {step} differs after the resume" for step in before if _content(run, step) != before[step]]
    return wrong if went_on else [*wrong, "it cannot be resumed"]


def _content(run, step):
    """Return what a step trains on: questions, responses and advantages."""
    lines = (run.folder / "records" / f"rows_{step}.jsonl").read_text("utf-8").splitlines()
    return sorted((row["index"], row["responses"], row["advantages"]) for row in map(json.loads, lines))


def _show(struck, run, wanted):
    """Print a fault, and keep the log of a run that did not end as ``wanted``."""
    print(f"{struck.fault}: {struck.outcome} after {struck.seconds:.1f} s", struck.wrong, flush=True)
    if struck.outcome != wanted:
        path = Path(tempfile.gettempdir()) / f"verl_faults_{run.folder.name}_{int(time.time())}.log"
        path.write_text(_output(run), encoding="utf-8")
        print("its log is", path, flush=True)


def _output(run):
    path = run.folder / "output.log"
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _wait(true, seconds):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def send(pid, number):
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    given = options(__doc__, faults=FAULTS, fatal=3, results=RESULTS, seed=SEED)
    study(given.faults, given.fatal, given.results, given.seed)
