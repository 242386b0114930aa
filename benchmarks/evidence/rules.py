"""How a verdict follows from figures. Written before the values are read, the same for every paper and for us.

A claim says that something lies above a bound, below one, or between two: above 0 for "better", above a small loss for
"no worse", below 5% for "at most 5%". Each setting that it is tried in gives one ``Effect``: a figure with its 95%
interval.

- *Confirmed*: the whole interval is on the claim's side of the bound. *Refuted*: the whole interval is on the other
  side, or has no gain that matters although the claim is "better": 2 points of success, 3 of mean@16. *Too weak to
  tell*: the interval has room for both.
- With k settings every interval is widened to 1 - .05 / k (Bonferroni), so that luck in one of many tells nothing.
- A theorem or identity is refuted by one counterexample beyond rounding. It is confirmed by 59 instances without one,
  of which a share of 5% would have shown with a chance of 95%.
- A test that finds nothing confirms nothing. It refutes a claim that nothing is there if it rejects.
- A central claim, one that the paper is about, needs ten paired seeds. With fewer its verdict is "cannot be told",
  whichever way the intervals lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from scipy import special, stats

LEVEL, ENOUGH_SEEDS, ENOUGH_INSTANCES = 0.05, 10, 59


class Kind(StrEnum):
    """Whose claim it is."""

    PAPER = "the paper's, measured"
    THEOREM = "the paper's theorem or identity"
    READING = "our reading of the paper"
    OURS = "our own"


class Verdict(StrEnum):
    """What the settings say together. The rule is symmetric: turning every effect round turns the verdict round."""

    HOLDS = "holds"
    PART = "holds in part"
    CONDITIONS = "holds under conditions"
    FAILS_PART = "fails in part"
    FAILS = "does not hold"
    OPEN = "cannot be told"


@dataclass(frozen=True)
class Effect:
    """A figure of one setting with its 95% interval, and where the claim says that it lies.

    Args:
        name: the setting and what was measured.
        mean, low, high: the figure and its interval, which is the figure itself if nothing was drawn at random.
        seeds: how many runs the interval is over; None if it is not over runs.
        above, below: the bounds of the claim. Without both, the figure stands beside the claim and tells nothing.
        matters: the smallest distance above ``above`` that matters, if the claim is that of a gain.
        decided: 1 or -1 if no interval decides, but a count of counterexamples or a test; 0 if it is too weak.
        form: how the figures are written.
    """

    name: str
    mean: float
    low: float
    high: float
    seeds: int | None = None
    above: float | None = None
    below: float | None = None
    matters: float | None = None
    decided: int | None = None
    form: str = "+.3f"

    def told(self, settings=1):
        """Return 1 if the effect confirms the claim as one of so many settings, -1 if it refutes it, else 0."""
        if self.decided is not None:
            return self.decided
        low, high = self.interval(settings)
        above, below = -inf if self.above is None else self.above, inf if self.below is None else self.below
        exact = self.low == self.high
        if (low > above or (exact and low == above)) and (high < below or (exact and high == below)):
            return 1
        return -1 if high < above + (self.matters or 0.0) or low > below else 0

    def interval(self, settings):
        """Return the interval at the level that so many settings need."""
        if self.seeds == 1:
            return -inf, inf
        levels = [1 - LEVEL / 2 / settings, 1 - LEVEL / 2]
        own, one = special.ndtri(levels) if self.seeds is None else special.stdtrit(self.seeds - 1, levels)
        wider = float(own / one)
        return self.mean - wider * (self.mean - self.low), self.mean + wider * (self.high - self.mean)

    def __str__(self):
        form, plain = self.form, self.form.lstrip("+")
        text = format(self.mean, form)
        if self.low < self.high:
            half = (self.high - self.low) / 2
            even = abs(self.high + self.low - 2 * self.mean) <= 1e-6 * max(1.0, abs(self.mean))
            text += f" ± {half:{plain}}" if even else f" [{self.low:{plain}}, {self.high:{plain}}]"
        return f"{self.name} {text}".strip()


def has_few_seeds(effects):
    """Return whether an effect is over fewer seeds than a central claim needs."""
    return any(each.seeds is not None and each.seeds < ENOUGH_SEEDS for each in effects)


def verdict(effects, central=False):
    """Return what the effects of a claim say together."""
    if central and has_few_seeds(effects):
        return Verdict.OPEN
    told = [each.told(len(effects)) for each in effects]
    if 1 in told and -1 in told:
        return Verdict.CONDITIONS
    if 1 in told:
        return Verdict.PART if 0 in told else Verdict.HOLDS
    if -1 in told:
        return Verdict.FAILS_PART if 0 in told else Verdict.FAILS
    return Verdict.OPEN


def instances(name, counterexamples, number):
    """Return the effect of looking for counterexamples in so many instances."""
    share = counterexamples / number
    decided = -1 if counterexamples else int(number >= ENOUGH_INSTANCES)
    return Effect(f"{name}, counterexamples in {number:,}", share, share, share, decided=decided, form=".2%")


def share(name, count, number, **bounds):
    """Return the share of ``number`` with its Clopper-Pearson interval."""
    found = stats.binomtest(count, number).proportion_ci()
    return Effect(f"{name} {count} of {number}:", count / number, found.low, found.high, form=".0%", **bounds)


def exact(name, value, form=".2f", **bounds):
    """Return the effect of a figure that nothing random is in."""
    return Effect(name, value, value, value, form=form, **bounds)
