"""A population of prompts with known success probabilities, and everything that a rule could learn about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from apportion.checks import check_integer, check_numbers
from apportion.predictors.statistics.beta_binomial import expit, logit
from apportion.records import RunRecord
from apportion.simulation.mixture import SHAPES, BetaMixture, fit_mixture
from apportion.types import Floats, Prompt

EXTREME = 1e-6
"""Success probabilities are kept this far from 0 and 1, so that their log-odds are finite and can drift."""
MOST_LOG_ODDS = 100.0
"""The largest change of log-odds in a setting. Success is 0 or 1 to the last digit long before."""
MOST_SIGNAL = 1e6
"""The largest signal over noise of embeddings. They tell the log-odds to six digits then."""
BYTES_PER_PROMPT = 400
"""Memory of one prompt, its identifier, and what rules remember of it, without its embedding."""
MOST_BYTES = 8 * 2**30
EMBEDDED_COPIES = 2
"""An embedding is held by the population and by a predictor."""

LEAST = (
    ("prompts", 1, "a population needs a prompt"),
    ("seed", 0, "any other whole number will do"),
    ("embedding_size", 0, "0 gives no embeddings"),
    ("wrong_answers", 1, "a wrong completion needs an answer"),
)
BOUNDS = (
    ("false_positive false_negative failures", 0.0, 1.0, "it is a share of rollouts"),
    ("drift", 0.0, MOST_LOG_ODDS, "0 is none"),
    ("embedding_signal", 0.0, MOST_SIGNAL, "0 is none"),
    ("length_spread length_noise", 0.0, math.inf, "0 is none"),
    ("trend rate_shift", -MOST_LOG_ODDS, MOST_LOG_ODDS, "it counts log-odds"),
    ("tokens wrong_longer", 0.0, math.inf, "lengths are above 0"),
    ("rate_correlation", -1.0, 1.0, "None gives no rates"),
)
"""Names of settings, their least and largest value, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """``prompts`` prompts whose success probabilities are known to the simulation, and to no rule.

    The log-odds of prompt q at step t are x_q + trend t + d_qt. x_q is drawn from ``shape``. d_qt is a random walk that
    returns to 0 with a half-life: d_q0 = 0 and d_qt = 2^(-1 / half_life) d_q,t-1 + drift z_qt with z_qt ~ N(0, 1).
    Equal settings and seeds give equal populations. The drift does not depend on which prompts got rollouts, so the
    population does not learn.

    Args:
        prompts: number of prompts, Q.
        shape: distribution of the success probabilities at step 0.
        seed: of all random numbers, at least 0.
        drift: standard deviation of one step of each prompt's log-odds. 0 keeps them where they are.
        half_life: steps after which half of a deviation has gone; inf is a plain random walk.
        trend: change of all log-odds in one step.
        embedding_size: dimensions of the embeddings; 0 gives none.
        embedding_signal: variance that log-odds add along one direction of the embeddings, over that of the noise. The
            expected correlation of that direction with the log-odds is sqrt(signal / (1 + signal)).
        rate_correlation: correlation of known rates with the log-odds at step 0, as those of another model; None gives
            no rates.
        rate_shift: log-odds by which that other model is better.
        false_positive: probability that the verifier calls a wrong completion right.
        false_negative: probability that the verifier calls a right completion wrong.
        failures: share of rollouts that return no result.
        tokens: median length of a right completion of a median prompt.
        length_spread: standard deviation of log lengths between prompts.
        length_noise: standard deviation of log lengths within a prompt.
        wrong_longer: length of wrong completions over that of right ones.
        wrong_answers: number of different wrong answers.

    Raises ValueError for settings that make no sense, and for a population that would not fit in 8 GiB.

    >>> population = Population(prompts=3, shape=SHAPES["easy"])
    >>> [prompt.id for prompt in population.members], population.start.round(2).tolist()
    (['p0', 'p1', 'p2'], [0.94, 0.77, 0.87])
    """

    prompts: int = 1000
    shape: BetaMixture = field(default_factory=lambda: SHAPES["like-the-run"])
    seed: int = 0
    drift: float = 0.0
    half_life: float = math.inf
    trend: float = 0.0
    embedding_size: int = 0
    embedding_signal: float = 0.25
    rate_correlation: float | None = None
    rate_shift: float = 1.0
    false_positive: float = 0.0
    false_negative: float = 0.0
    failures: float = 0.0
    tokens: float = 300.0
    length_spread: float = 0.5
    length_noise: float = 0.3
    wrong_longer: float = 1.3
    wrong_answers: int = 8

    def __post_init__(self) -> None:
        check_numbers(self)
        for name, least, remedy in LEAST:
            check_integer(name, getattr(self, name), least, remedy)
        for names, low, high, remedy in BOUNDS:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not (low <= value <= high and math.isfinite(value)):
                    bounds = f"at least {low:g} and finite" if high == math.inf else f"{low:g} to {high:g}"
                    raise ValueError(f"{name} must be {bounds}, got {value}; {remedy}")
        for name in ("tokens", "wrong_longer", "half_life"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}; leave it out for the default")
        size = BYTES_PER_PROMPT + 4 * EMBEDDED_COPIES * self.embedding_size
        if self.prompts * size > MOST_BYTES:
            raise ValueError(
                f"prompts must be at most {MOST_BYTES // size:,} to fit in 8 GiB at {size:,} bytes each, got "
                f"{self.prompts:,}; lower prompts or embedding_size"
            )

    @classmethod
    def like(cls, record: RunRecord, **settings: object) -> Self:
        """Return a population whose success probabilities are distributed as those of a recorded run's prompts.

        Only the first group of each prompt enters, because later ones were trained on. Other ``settings`` are those of
        the class. Raises ValueError for rewards other than 0 and 1.
        """
        if not record.binary:
            raise ValueError(
                f"a population like {record.name} needs rewards of 0 and 1, got graded rewards; choose another run"
            )
        first = record.visit == 0
        shape = fit_mixture(record.totals[first].astype(np.int64), record.trials[first])
        return cls(shape=shape, **settings)  # type: ignore[arg-type]

    def with_seed(self, seed: int) -> Self:
        """Return the same population with another seed: other prompts, of the same distribution."""
        return replace(self, seed=seed)

    def resized(self, prompts: int) -> Self:
        """Return a population of another size, with the same settings."""
        return replace(self, prompts=prompts)

    @cached_property
    def members(self) -> tuple[Prompt, ...]:
        """The prompts [Q], with known rates if there are any. Their texts say nothing about their success."""
        rates = [None] * self.prompts if self.rates is None else self.rates.tolist()
        return tuple(Prompt(f"p{q}", id=f"p{q}", rate=rate) for q, rate in enumerate(rates))

    @cached_property
    def start(self) -> Floats:
        """Success probabilities at step 0, [Q]."""
        drawn = self.shape.draw(self.prompts, self._generator("start"))
        return np.clip(drawn, EXTREME, 1 - EXTREME)

    @cached_property
    def embeddings(self) -> NDArray[np.float32] | None:
        """The embeddings [Q, d], float32; None without any."""
        if not self.embedding_size:
            return None
        generator = self._generator("embeddings")
        found = generator.standard_normal((self.prompts, self.embedding_size), np.float32)
        signal = math.sqrt(self.embedding_signal) * self._standard_log_odds
        found += signal[:, None].astype(np.float32) * self.direction.astype(np.float32)
        return found

    @cached_property
    def direction(self) -> Floats:
        """The unit vector [d] along which embeddings tell the log-odds."""
        drawn = self._generator("direction").standard_normal(max(self.embedding_size, 1))
        return np.asarray(drawn / np.linalg.norm(drawn))

    @cached_property
    def rates(self) -> Floats | None:
        """Known success rates of another model, [Q]; None without any."""
        if self.rate_correlation is None:
            return None
        x, rho = logit(self.start), self.rate_correlation
        noise = self._generator("rates").standard_normal(self.prompts)
        mixed = rho * self._standard_log_odds + math.sqrt(1 - rho**2) * noise
        return np.clip(expit(x.mean() + self.rate_shift + x.std() * mixed), EXTREME, 1 - EXTREME)

    @cached_property
    def embedding_correlation(self) -> float:
        """Correlation achieved between the log-odds and the direction of the embeddings that tells them."""
        if self.embeddings is None:
            return 0.0
        return _correlation(self.embeddings @ self.direction, logit(self.start))

    @cached_property
    def achieved_rate_correlation(self) -> float:
        """Correlation achieved between the log-odds of known rates and those of the prompts."""
        return 0.0 if self.rates is None else _correlation(logit(self.rates), logit(self.start))

    def embedder(self) -> PopulationEmbedder:
        """Return an embedder of these prompts. Raise ValueError if there are no embeddings."""
        if not self.embedding_size:
            raise ValueError(
                "a predictor that reads embeddings needs embedding_size of at least 1, got 0; set it, or choose "
                "another predictor"
            )
        return PopulationEmbedder(self)

    def walk(self) -> Iterator[Floats]:
        """Yield the success probabilities [Q] of step 0, step 1, and so on. Equal calls yield equal numbers."""
        start, deviation = logit(self.start), np.zeros(self.prompts)
        kept, generator, step = 2.0 ** (-1 / self.half_life), self._generator("drift"), 0
        while True:
            moves = self.drift > 0 or self.trend != 0
            latent = start + self.trend * step + deviation
            yield expit(latent) if moves and step else self.start
            step += 1
            if self.drift:
                deviation = kept * deviation + self.drift * generator.standard_normal(self.prompts)

    def reward_probability(self, success: Floats) -> Floats:
        """Return the probability that the verifier calls a rollout right, elementwise, from that of being right."""
        return success * (1 - self.false_negative) + (1 - success) * self.false_positive

    @cached_property
    def _standard_log_odds(self) -> Floats:
        x = logit(self.start)
        spread = x.std()
        return (x - x.mean()) / spread if spread > 0 else np.zeros_like(x)

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose.encode()])


@dataclass
class PopulationEmbedder:
    """Gives the embeddings of the prompts of a population."""

    population: Population
    name: ClassVar[str] = "population"

    def __call__(self, prompts: Sequence[Prompt], /) -> NDArray[np.float32]:
        """Return the embeddings [P, d]."""
        found = self.population.embeddings
        assert found is not None  # the population has some, or it would not have made this
        return found[[place_of(prompt) for prompt in prompts]]


def place_of(prompt: Prompt) -> int:
    """Return the place of a prompt in its population."""
    return int(prompt.id[1:])


def _correlation(a: Floats, b: Floats) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0
