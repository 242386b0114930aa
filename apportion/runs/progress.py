"""What a person sees of a long run: bars on a terminal, and elsewhere a line from time to time."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_EVERY_SECONDS = 15.0
NAMED = {"informative": "mixed groups"}
"""Labels of the keys of the records."""


class Bars(Progress):
    """Bars on ``console`` if that is a terminal; elsewhere lines for ``say``, at most one every 15 seconds."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        note = TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._say = say
        self._named: dict[str, TaskID] = {}
        self._last_line = time.monotonic()

    def show(self, name: str, done: int, total: int, note: str = "", *, hide: bool = False) -> None:
        """Draw the bar ``name`` at ``done`` of ``total``, or ``hide`` it."""
        if name not in self._named:
            self._named[name] = self.add_task(name, note=note)
        self.update(self._named[name], completed=done, total=total, note=note, visible=not hide)

    def say(self, line: str, *, always: bool = False) -> None:
        """Say ``line`` if there is no terminal and a line is due, or ``always`` is set."""
        if self.disable and (always or time.monotonic() - self._last_line > LINE_EVERY_SECONDS):
            self._last_line = time.monotonic()
            self._say(line)


class Display:
    """Writes to ``console``, by default the terminal or stdout. Each run takes ``length`` of its ``unit``.

    ``unit`` is a key of the records, as in ``Training.unit``.
    """

    def __init__(self, length: int, unit: str = "rollouts", console: Console | None = None) -> None:
        self.length, self.unit = length, unit
        self.console = console or Console(highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Write one line."""
        self.console.print(line, markup=False)

    def plan(self, lines: Sequence[str]) -> None:
        """Write the lines of a plan."""
        for line in lines:
            self.say(line)

    @contextmanager
    def base_training(self) -> Iterator[Callable[[int, int, float], None]]:
        """Show the training of a base policy; yields the callback that ``base_policy`` takes."""
        self.say("Training the base policy, once for this machine.")
        with Bars(self.console, self.say) as bars:

            def show(step: int, steps: int, loss: float) -> None:
                bars.show("base", step, steps, f"loss {loss:.3f}")
                bars.say(f"base: step {step} of {steps}, loss {loss:.3f}")

            yield show

    @contextmanager
    def training(self, records: Any, runs: Sequence[str]) -> Iterator[None]:
        """Show the ``records`` that arrive in a queue as (run, record), until the block ends."""
        with Bars(self.console, self.say) as bars:
            live = _Runs(bars, self.length, self.unit, runs)
            listener = threading.Thread(target=live.listen, args=(records,), daemon=True)
            listener.start()
            try:
                yield
            finally:
                records.put(None)
                listener.join(timeout=5)


class _Runs:
    """The latest record of each run of a study."""

    def __init__(self, bars: Bars, length: int, unit: str, runs: Sequence[str]) -> None:
        self.bars, self.length, self.unit = bars, length, unit
        self.latest: dict[str, dict[str, Any]] = {run: {} for run in runs}
        self.started = time.monotonic()
        self.resumed = 0

    def listen(self, records: Any) -> None:
        self._show_all()
        while (message := records.get()) is not None:
            run, record = message
            if not self.latest[run]:
                self.resumed += record[self.unit]
            self.latest[run] |= record
            note, done = self._note(run), self.latest[run][self.unit]
            finished = done >= self.length
            self.bars.show(run, done, self.length, note, hide=finished)
            self.bars.say(f"{self._show_all()}; {run}: {'finished, ' * finished}{note}", always=finished)

    def _show_all(self) -> str:
        """Draw the bar of all runs. Return what they have spent, and the remaining time."""
        spent = sum(record.get(self.unit, 0) for record in self.latest.values())
        total, new = self.length * len(self.latest), spent - self.resumed
        units = "steps" if self.unit == "step" else self.unit
        self.bars.show("all runs", spent, total, units)
        left = "starting"
        if new:
            minutes = (time.monotonic() - self.started) / new * (total - spent) / 60
            left = f"about {max(0.0, minutes):.1f} minutes left"
        return f"{spent:,} of {total:,} {units}, {left}"

    def _note(self, run: str) -> str:
        record = self.latest[run]
        parts = [
            f"{NAMED.get(key, key)} {record[key]:.3f}" for key in ("mean_16", "success", "informative") if key in record
        ]
        if "counts" in record:
            parts.append(f"{min(record['counts'])} to {max(record['counts'])} rollouts a prompt")
        return ", ".join(parts)
