"""Sources of fresh prompts, and graded batches."""

import itertools

from tests.builders import make_prompts
from tests.predictors.builders import graded_batch


def source_of(prompts):
    """A source of prompts in order that records the size of each draw."""
    rest, draws = iter(prompts), []

    def source(count):
        draws.append(count)
        return list(itertools.islice(rest, count))

    return source, draws


def graded(*groups):
    """Return a batch of one round with these rewards and no verdicts."""
    return graded_batch(make_prompts(len(groups)), groups)
