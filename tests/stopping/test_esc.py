from itertools import product

import numpy as np
import pytest

from apportion.stopping import ESC, count_votes, decide


def literal(stream, window):
    """Return the samples used, window by window, as in the paper."""
    for start in range(0, len(stream) - window + 1, window):
        if len(set(stream[start : start + window])) == 1 and stream[start] is not None:
            return start + window
    return len(stream)


@pytest.mark.parametrize("window", [3, 4])
def test_streams_stop_as_in_the_paper(window):
    streams = [list(codes) for codes in product([None, "a", "b"], repeat=8)]
    expected = [literal(stream, window) for stream in streams]
    assert decide(streams, "esc", 8, window=window).samples.tolist() == expected
    # a wave that the window does not divide stops at its end
    ended = [min(-(-end // 5) * 5, 8) for end in expected]
    assert decide(streams, "esc", 8, window=window, wave=5).samples.tolist() == ended


def test_the_earliest_end_can_be_reached():
    rule, window = ESC(window=3), 3
    for codes in product([-1, 0, 1], repeat=5):
        past = list(codes)
        more = rule.earliest(count_votes(np.array(past), 2), 20)
        inside = len(past) % window
        repeated = past[-1] if inside and more < window else 1
        votes = count_votes(np.array(past + [repeated] * more), 2)
        assert rule.stops_now(votes, 20)
