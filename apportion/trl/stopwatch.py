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
    >>> watch.begin(rollouts=8)
    >>> with watch.call(), watch.part("generate"):
    ...     time.sleep(0.01)
    >>> sorted(watch.metrics())
    ['seconds', 'seconds_generate', 'seconds_reward']
    """

    rounds: list[defaultdict[str, float]] = field(default_factory=list)
    _back: float = field(default_factory=time.perf_counter)
    """Time at which TRL's own methods were last left. Their later calls outside a round move it forward."""

    def begin(self, rollouts: int) -> None:
        """Begin a round of ``rollouts``."""
        self.rounds.append(defaultdict(float, rollouts=rollouts))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Measure a call of TRL's own method in the latest round."""
        self.rounds[-1]["seconds"] += time.perf_counter() - self._back
        yield
        self._back = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure "generate" or "reward", in a round or after it. Rewards of whole groups are no time of our own."""
        entered = time.perf_counter()
        yield
        took = time.perf_counter() - entered
        self.rounds[-1][f"seconds_{name}"] += took
        self._back += took

    def metrics(self) -> dict[str, float]:
        """Return the seconds so far, in total, and by round if there was more than one.

        ``seconds`` is the time outside TRL's own method. A round's ``seconds`` is the part of it since the round
        before.
        """
        found = {name: sum(each[name] for each in self.rounds) for name in SECONDS}
        found["seconds"] += time.perf_counter() - self._back
        for number, each in enumerate(self.rounds if len(self.rounds) > 1 else (), 1):
            found |= {f"round_{number}/{name}": each[name] for name in ("rollouts", *SECONDS)}
        return found
