"""When an update of a stream is due, and which finished units it takes: by rows, or by prompts as an engine trains."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from apportion.checks import check_integer
from apportion.scheduler.unit import Unit


@dataclass
class Rows:
    """An update has ``size`` rows or more: all units at ``age_bound``, then those that finished first.

    Groups stay whole, so it may have a few more. It waits for units at the bound that are not finished. Those without
    rows come along, to be learnt from.

    Args:
        size: rollouts that an update holds at least.
        age_bound: the most updates between the request of a unit's first rollout and the update that takes it. With 0
            everything is sampled by the newest policy, and slots wait for each update.
    """

    size: int
    age_bound: int = 1
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    """The counts of the stream."""
    updates_a_version = 1
    """Updates between two transfers of weights. Age is counted from the latest one."""

    def __post_init__(self) -> None:
        check_integer("the size of an update", self.size, 1, "count what it trains on")
        check_integer("age_bound", self.age_bound, 0, "count updates; 0 samples everything by the newest policy")

    def share(self, rows: float) -> float:
        """Return the size that a unit with ``rows`` rows adds to an update."""
        return rows

    def enough(self, finished: Mapping[int, int]) -> bool:
        """Return whether the ``finished`` units, given with their rows, are enough for an update."""
        return sum(finished.values()) >= self.size

    def take(self, finished: Mapping[int, int], units: Mapping[int, Unit], version: int, short: bool) -> list[int]:
        """Return the numbers of the units of the next update; [] if it is not due. It may be ``short`` of its size.

        ``finished`` has the rows of finished units by number.
        """
        if not (short or self.enough(finished)):
            return []
        due = {number for number, unit in units.items() if unit.opened <= version - self.age_bound}
        if any(units[number].missing for number in due):
            return []
        taken, rows, prompts = list[int](), 0, 0
        for number in sorted(finished, key=lambda number: number not in due):
            own = finished[number]
            if number in due or not own or self.fits(own, rows, prompts):
                taken.append(number)
                rows, prompts = rows + own, prompts + (own > 0)
        return taken

    def took(self, units: int) -> None:
        """Note that an update took these ``units``."""

    def fits(self, own: int, rows: int, prompts: int) -> bool:
        """Return whether an update of ``rows`` rows and ``prompts`` prompts has room for a unit with ``own`` rows."""
        return rows < self.size


@dataclass
class Prompts(Rows):
    """An update has ``size`` prompts with rows or more, each planned alone.

    ``counts["owed"]`` are the prompts beyond ``size`` that updates had so far.

    Args:
        size: prompts that an update holds at least.
        age_bound: as in ``Rows``.
        most_rows: rows that an update holds at most, unless units at ``age_bound`` have more; None for any number. It
            has those finished prompts whose rows fit, which may be fewer than ``size``. Then later updates have more.
        updates_a_version: updates between two of the engine's transfers of weights. Age is counted from the latest one.
    """

    most_rows: int | None = None
    updates_a_version: int = 1

    def share(self, rows: float) -> float:
        """Return 1 for a prompt with rows."""
        return float(rows > 0)

    def enough(self, finished: Mapping[int, int]) -> bool:
        """Return whether the finished units have enough prompts with rows, or their rows fill an update."""
        fill = self.most_rows is not None and sum(finished.values()) >= self.most_rows
        return fill or sum(map(bool, finished.values())) >= self.size

    def took(self, units: int) -> None:
        """Note by how many units the update is larger than ``size``."""
        self.counts["owed"] += units - self.size

    def fits(self, own: int, rows: int, prompts: int) -> bool:
        """Return whether an update has room for a unit, by prompts and by rows."""
        if self.most_rows is None:
            return prompts < self.size
        left = max(0, -self.counts["owed"])
        return prompts < self.size + left and (not rows or rows + own <= self.most_rows * (1 + left // self.size))
