"""What a person sees of a study: the plan, live progress, what it found. Plain lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_LINE_EVERY_SECONDS = 15.0


class Display:
    """Writes to ``console``, by default the terminal or whatever stdout is; every run takes ``length`` of its ``unit``.

    ``unit`` is a key of the records, as in ``Training.unit``.
    """

    def __init__(self, length: int, unit: str = "rollouts", console: Console | None = None) -> None:
        self.length, self.unit = length, unit
        self.console = console or Console(highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """One line to the person."""
        self.console.print(line, markup=False)

    def plan(self, lines: Sequence[str]) -> None:
        """What is about to happen, before it does."""
        for line in lines:
            self.say(line)

    @contextmanager
    def base_training(self) -> Iterator[Callable[[int, int, float], None]]:
        """Progress of the supervised base policy; yields the callback that ``base_policy`` takes."""
        self.say("Training the base policy, once for this machine.")
        with self._bars() as bars:
            task = bars.add_task("base", total=None, note="")
            spoken = time.monotonic()

            def progress(step: int, steps: int, loss: float) -> None:
                nonlocal spoken
                bars.update(task, completed=step, total=steps, note=f"loss {loss:.3f}")
                if not self.console.is_terminal and time.monotonic() - spoken > PLAIN_LINE_EVERY_SECONDS:
                    spoken = time.monotonic()
                    self.say(f"base: step {step} of {steps}, loss {loss:.3f}")

            yield progress

    @contextmanager
    def training(self, told: Any, runs: Sequence[str]) -> Iterator[None]:
        """Shows the records that arrive in the queue ``told`` as (run, record), until the block ends."""
        with self._bars() as bars:
            live = _Live(self, bars, runs)
            listener = threading.Thread(target=live.listen, args=(told,), daemon=True)
            listener.start()
            try:
                yield
            finally:
                told.put(None)
                listener.join(timeout=5)

    def _bars(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        return Progress(*columns, TimeRemainingColumn(), console=self.console, disable=not self.console.is_terminal)


class _Live:
    """The latest record of every run, as bars or as a line now and then."""

    def __init__(self, display: Display, bars: Progress, runs: Sequence[str]) -> None:
        self.display, self.bars = display, bars
        self.units = "steps" if display.unit == "step" else display.unit
        self.spent = dict.fromkeys(runs, 0)
        self.latest: dict[str, dict[str, Any]] = {run: {} for run in runs}
        self.budget = display.length * len(runs)
        self.total = bars.add_task("all runs", total=self.budget, note=self.units)
        self.tasks: dict[str, TaskID] = {}
        self.started = self.spoken = time.monotonic()
        self.resumed = 0

    def listen(self, told: Any) -> None:
        while (message := told.get()) is not None:
            run, record = message
            if not self.latest[run]:
                self.resumed += record[self.display.unit]
            self.spent[run] = record[self.display.unit]
            self.latest[run] |= record
            self._show(run)

    def _show(self, run: str) -> None:
        per_run = self.display.length
        note = self._note(run)
        if run not in self.tasks:
            self.tasks[run] = self.bars.add_task(run, total=per_run, note=note)
        self.bars.update(self.tasks[run], completed=self.spent[run], note=note)
        self.bars.update(self.total, completed=sum(self.spent.values()))
        if self.spent[run] >= per_run:
            self.bars.update(self.tasks[run], visible=False)
        if self.display.console.is_terminal:
            return
        finished = self.spent[run] >= per_run
        if finished or time.monotonic() - self.spoken > PLAIN_LINE_EVERY_SECONDS:
            self.spoken = time.monotonic()
            spent = sum(self.spent.values())
            self.display.say(
                f"{spent:,} of {self.budget:,} {self.units}, {self._minutes_left(spent)}; "
                f"{run}: {'finished, ' if finished else ''}{note}"
            )

    def _note(self, run: str) -> str:
        record = self.latest[run]
        parts = [f"{key} {record[key]:.3f}" for key in ("mean_16", "success", "informative") if key in record]
        if "counts" in record:
            parts.append(f"{min(record['counts'])} to {max(record['counts'])} rollouts a prompt")
        return ", ".join(parts)

    def _minutes_left(self, spent: int) -> str:
        new = spent - self.resumed
        if not new:
            return "starting"
        minutes = (time.monotonic() - self.started) / new * (self.budget - spent) / 60
        return f"about {max(0.0, minutes):.1f} minutes left"
