"""A probe that a server samples: a random part of the questions, each with as many samples, kept as a vote is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.forecast.probe import Probe
from apportion.forecast.rates import RateSample
from apportion.questions import Question
from apportion.vote.revote import kept_rollouts
from apportion.vote.setup import Setup, make_setup


def drawn_questions(questions: Sequence[Question], prompts: int, seed: int = 0) -> list[Question]:
    """Return ``prompts`` random questions, or all if there are fewer. A larger draw contains a smaller one.

    Raises ValueError if one has no right answer, or if there is none.
    """
    if not questions or prompts < 1:
        raise ValueError(f"a forecast needs a question, got {len(questions)} and {prompts} to draw; give more")
    for question in questions:
        if not question.golds:
            raise ValueError(f"a question needs a right answer, got none for {question.id!r}; add a column answer")
    return [questions[q] for q in np.random.default_rng(seed).permutation(len(questions))[:prompts]]


def sampling_setup(base_url: str, model: str, rollouts: int, **settings: Any) -> Setup:
    """Return the settings of a vote that takes ``rollouts`` samples of each question, whatever the answers are."""
    counted: dict[str, Any] = {"rule": "fixed", "max_samples": rollouts, "give_up": rollouts, "curtail": False}
    return make_setup(base_url, model, **counted, **settings)


def probe_of_vote(path: Path, tokens: float = np.nan, questions: Sequence[Question] = ()) -> Probe:
    """Return the kept samples of the vote at ``path``, with their ``tokens``; only those of ``questions`` if given.

    Raises ValueError without right answers.
    """
    found = kept_rollouts(path, questions, only=bool(questions))
    groups = [np.asarray(own) for own in found.rewards]
    sample = RateSample.of([int(own.sum()) for own in groups], [len(own) for own in groups])
    return Probe(found.name, sample, sum(map(len, groups)), tokens, found.doubts)
