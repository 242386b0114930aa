"""OptPO, the allocator: its stopping rule has its settings, and its labels and groups are those of the paper."""

import numpy as np
import pytest

from apportion import OptPO
from apportion.allocators.votes import PseudoLabel
from apportion.stopping import Curtailed, make_rule
from tests.allocators.votes.builders import replayed


@pytest.mark.parametrize(
    "own",
    [{}, {"alpha": 0.2, "beta": 0.1, "p0_factor": 0.8, "exceedances": 2}, {"choices": 4, "low_accuracy": "literal"}],
)
def test_its_stopping_rule_has_its_settings(own):
    rule = make_rule("optpo", min_samples=6, **own)
    assert OptPO(min_samples=6, curtail=False, **own).stopping == rule
    assert OptPO(min_samples=6, curtail=True, **own).stopping == Curtailed(rule)


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
