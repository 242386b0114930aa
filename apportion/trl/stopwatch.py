"""Where the time of a generation batch goes, by round: generation, rewards, and everything outside TRL's own method."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SECONDS = ("seconds", "seconds_generate", "seconds_reward")


@dataclass
class Stopwatch:
    """Measures one generation batch, from its construction on.

    Each round has its number of ``rollouts`` and three times. ``seconds`` is the time outside TRL's own methods since
    the round before, which plans this one. ``seconds_generate`` and ``seconds_reward`` are spent within them.

    >>> watch = Stopwatch()
    >>> with watch.round(rollouts=8), watch.part("generate"):
    ...     time.sleep(0.01)
    >>> sorted(watch.metrics())
    ['seconds', 'seconds_generate', 'seconds_reward']
    """

    rounds: list[defaultdict[str, float]] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)
    _within: float = 0.0
    _in_round: bool = False

    def __post_init__(self) -> None:
        self._paused = self._started

    @contextmanager
    def round(self, rollouts: int, *, continues: bool = False) -> Iterator[None]:
        """Measure TRL's own method in a round of ``rollouts``, or in a further part of the last round."""
        entered = time.perf_counter()
        if not continues:
            self.rounds.append(defaultdict(float))
        self.rounds[-1]["rollouts"] += rollouts
        self.rounds[-1]["seconds"] += entered - self._paused
        self._in_round = True
        yield
        self._in_round = False
        self._paused = time.perf_counter()
        self._within += self._paused - entered

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure "generate" or "reward" in a round, or after it: rewards of whole groups are none of our own time."""
        entered = time.perf_counter()
        yield
        took = time.perf_counter() - entered
        self.rounds[-1][f"seconds_{name}"] += took
        if not self._in_round:
            self._within += took
            self._paused += took

    def metrics(self) -> dict[str, float]:
        """Return the seconds so far, in total, and by round if there was more than one.

        ``seconds`` is the time outside TRL's own method. A round's ``seconds`` is the part of it since the round
        before.
        """
        found = {name: sum(each[name] for each in self.rounds) for name in SECONDS}
        found["seconds"] = time.perf_counter() - self._started - self._within
        for number, each in enumerate(self.rounds if len(self.rounds) > 1 else (), 1):
            found |= {f"round_{number}/{name}": each[name] for name in ("rollouts", *SECONDS)}
        return found
