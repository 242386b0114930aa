"""Votes on recorded streams of answers."""

from apportion import Rollout, collect
from tests.builders import make_prompts


def replayed(allocator, streams):
    """The finished batch when prompt q's answers are those of stream q, in order; its completions are their places."""
    used = [0] * len(streams)

    def sample(prompts, counts):
        rounds = []
        for q, count in enumerate(counts):
            places = range(used[q], used[q] + int(count))
            rounds.append([Rollout(answer=streams[q][t], completion=t, tokens=1 + t % 5) for t in places])
            used[q] += int(count)
        return rounds

    return collect(allocator, make_prompts(len(streams)), sample)
