"""Where the time of a generation batch goes, by round: generation, rewards, and everything outside TRL's own method."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class RoundSeconds:
    """The seconds of one round of the allocator, and its number of ``rollouts``.

    ``outside`` is the time since the round before, which plans this one. ``within`` is the time in TRL's own methods,
    with ``generate`` and ``reward`` in it.
    """

    rollouts: int = 0
    outside: float = 0.0
    within: float = 0.0
    generate: float = 0.0
    reward: float = 0.0


@dataclass
class Stopwatch:
    """Measures one generation batch, from its construction on.

    >>> watch = Stopwatch()
    >>> with watch.round(rollouts=8), watch.generate():
    ...     time.sleep(0.01)
    >>> sorted(watch.metrics())
    ['seconds', 'seconds_generate', 'seconds_reward']
    """

    rounds: list[RoundSeconds] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)
    _in_round: bool = False

    def __post_init__(self) -> None:
        self._paused = self._started

    @contextmanager
    def round(self, rollouts: int, *, continues: bool = False) -> Iterator[None]:
        """Measure TRL's own method in a round of ``rollouts``, or in a further part of the last round."""
        entered = time.perf_counter()
        if not continues:
            self.rounds.append(RoundSeconds())
        current = self.rounds[-1]
        current.rollouts += rollouts
        current.outside += entered - self._paused
        self._in_round = True
        yield
        self._in_round = False
        self._paused = time.perf_counter()
        current.within += self._paused - entered

    @contextmanager
    def generate(self) -> Iterator[None]:
        """Measure generation within a round."""
        entered = time.perf_counter()
        yield
        self.rounds[-1].generate += time.perf_counter() - entered

    @contextmanager
    def reward(self) -> Iterator[None]:
        """Measure reward functions in a round, or after it: those of whole groups are none of our own time either."""
        entered = time.perf_counter()
        yield
        took = time.perf_counter() - entered
        self.rounds[-1].reward += took
        if not self._in_round:
            self.rounds[-1].within += took
            self._paused += took

    def metrics(self) -> dict[str, float]:
        """Return the seconds so far, in total, and by round if there was more than one.

        ``seconds`` is the time outside TRL's own method. A round's ``seconds`` is the part of it since the round
        before.
        """
        elapsed = time.perf_counter() - self._started
        found = {
            "seconds": elapsed - sum(each.within for each in self.rounds),
            "seconds_generate": sum(each.generate for each in self.rounds),
            "seconds_reward": sum(each.reward for each in self.rounds),
        }
        for number, each in enumerate(self.rounds if len(self.rounds) > 1 else (), 1):
            seconds = {"seconds": each.outside, "seconds_generate": each.generate, "seconds_reward": each.reward}
            own = {"rollouts": float(each.rollouts)} | seconds
            found |= {f"round_{number}/{name}": value for name, value in own.items()}
        return found
