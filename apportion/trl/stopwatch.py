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

    Each round has its number of ``rollouts`` and three times. ``seconds_generate`` and ``seconds_reward`` are spent in
    blocks of these names. ``seconds`` is spent outside any block: the time since the round before, which plans this
    one, and in the last round also that after it.

    >>> watch = Stopwatch()
    >>> watch.begin(rollouts=8)
    >>> with watch.within("trl"), watch.within("seconds_generate"):
    ...     time.sleep(0.01)
    >>> sorted(watch.metrics())
    ['seconds', 'seconds_generate', 'seconds_reward']
    """

    rounds: list[defaultdict[str, float]] = field(default_factory=list)
    _since: float = field(default_factory=time.perf_counter)
    _block: str = SECONDS[0]

    def begin(self, rollouts: int) -> None:
        """Begin a round of ``rollouts``."""
        self.rounds.append(defaultdict(float, rollouts=rollouts))

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Measure the block as ``name``. The time of a block within another one is that of the inner one alone."""
        outer = self._block
        self._enter(name)
        yield
        self._enter(outer)

    def metrics(self) -> dict[str, float]:
        """Return the seconds so far, in total, and by round if there was more than one."""
        self._enter(self._block)
        found = {name: sum(each[name] for each in self.rounds) for name in SECONDS}
        for number, each in enumerate(self.rounds if len(self.rounds) > 1 else (), 1):
            found |= {f"round_{number}/{name}": each[name] for name in ("rollouts", *SECONDS)}
        return found

    def _enter(self, name: str) -> None:
        """Add the time since the latest change to the block that ends, in the latest round."""
        now = time.perf_counter()
        self.rounds[-1][self._block] += now - self._since
        self._since, self._block = now, name
