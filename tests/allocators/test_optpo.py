"""OptPO, the allocator, against its stopping rule on the same streams, and against the paper's settings."""

import numpy as np
import pytest

from apportion import OptPO
from apportion.allocators.votes import PseudoLabel
from apportion.stopping import decide
from tests.allocators.votes.builders import replayed

M = 24
STREAMS = [
    [None if code < 0 else "abcde"[code] for code in row]
    for share in (0.2, 0.5, 0.8)
    for row in np.random.default_rng(0).choice(
        [-1, 0, 1, 2, 3, 4], (20, M), p=[0.1, share * 0.9, *[(0.9 - share * 0.9) / 4] * 4]
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("wave", "curtail"), [(1, False), (5, True), ("free", False)])
@pytest.mark.parametrize("low_accuracy", ["continue", "literal"])
@pytest.mark.parametrize(
    "settings", [{}, {"alpha": 0.2, "beta": 0.1, "p0_factor": 0.8, "exceedances": 2}, {"choices": 4}]
)
def test_it_stops_where_its_rule_does_on_the_same_stream(settings, low_accuracy, wave, curtail):
    settings = settings | {"min_samples": 6, "low_accuracy": low_accuracy}
    allocator = OptPO(max_samples=M, wave=wave, curtail=curtail, **settings)
    batch = replayed(allocator, STREAMS)
    decided = decide(STREAMS, "optpo", M, wave=wave, curtail=curtail, **settings)
    assert batch.asked.tolist() == decided.samples.tolist()
    assert len(set(batch.asked.tolist())) > 2
    assert [allocator.winner(batch, q) for q in range(len(STREAMS))] == list(decided.answer)


def test_at_low_accuracy_the_literal_test_chooses_the_runner_up():
    """kappa = p_0 / (1 - p_0) with p_0 = 0.6 x 3/4: 9/11 < 1, and the lead of 20 brings Lambda to B."""
    stream = [*"aaab", *"a" * 60]
    literal, plain = (OptPO(min_samples=4, max_samples=64, low_accuracy=kind) for kind in ("literal", "continue"))
    batch = replayed(literal, [stream])
    gap = np.ceil(np.log(0.05 / 0.95) / np.log(0.45 / 0.55))
    assert int(batch.asked[0]) == gap + 2 * 1 + 4
    assert literal.labels(batch) == [PseudoLabel("b", "decided", 1 / int(batch.asked[0]))]
    (group,) = literal.groups(batch)
    assert group.rewards.tolist() == [float(answer == "b") for answer in stream[:4]]
    assert plain.labels(replayed(plain, [stream])) == [PseudoLabel("a", "exhausted", 63 / 64)]


def test_a_tie_has_no_label_or_the_papers_which_is_the_leader():
    for ties, answer in (("drop", None), ("leader", "a")):
        optpo = OptPO(min_samples=2, max_samples=4, ties=ties)
        batch = replayed(optpo, [list("abab")])
        assert optpo.labels(batch) == [PseudoLabel(answer, "tied", 0.5)] and len(optpo.groups(batch)) == (answer == "a")
