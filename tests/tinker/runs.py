"""What a run trained on, read from the datums that reached the service, and the same computed from definitions."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from apportion.lab.world.task import encode
from tests.tinker.problems import EASE, questions

PROMPT = 4
"""Tokens of a question."""

BELOW = {tuple(encode(text)): EASE[i % len(EASE)] for i, text in enumerate(questions(40))}


@dataclass(frozen=True)
class Row:
    """A datum: its question and completion as token ids, and the advantage of the completion's tokens."""

    question: tuple
    ids: tuple
    advantage: float


def rows(datums):
    """Return the rows of one ``forward_backward``."""
    found = []
    for datum in datums:
        tokens = (*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].tolist()[-1])
        (advantage,) = set(datum.loss_fn_inputs["advantages"].tolist()[PROMPT - 1 :])
        found.append(Row(tokens[:PROMPT], tokens[PROMPT:], advantage))
    return found


def by_question(pairs):
    """Return the second members by the first."""
    found = defaultdict(list)
    for question, value in pairs:
        found[question].append(value)
    return dict(found)


def trained(service, step):
    """Return the rows of a step by question."""
    return by_question((row.question, row) for row in rows(service.trained[step]))


def sampled(service, step):
    """Return the rewards of all rollouts of a step by question."""
    return by_question(
        (question, float(ids[0] < BELOW[question])) for update, question, ids in service.sampled if update == step
    )


def counts(groups):
    """Return the sizes of groups by question."""
    return {question: len(group) for question, group in groups.items()}


def assert_advantages(service, step, *, weighting="prompt", factor=lambda n: 1.0):
    """Check every advantage of a step: w (r - mean of all that was sampled for the prompt), times ``factor`` of n."""
    groups, rewards = trained(service, step), sampled(service, step)
    total = sum(map(len, groups.values()))
    for question, group in groups.items():
        own = np.array(rewards[question])
        weight = total / len(groups) / len(group) if weighting == "prompt" else 1.0
        for row in group:
            plain = float(row.ids[0] < BELOW[question]) - own.mean()
            np.testing.assert_allclose(row.advantage, weight * factor(len(own)) * plain, rtol=1e-5, atol=1e-6)
