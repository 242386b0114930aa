"""OptPO, the allocator: its stopping rule has its settings, and its labels and groups are those of the paper."""

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


def test_a_tie_has_no_label_or_the_papers_which_is_the_leader():
    for ties, answer in (("drop", None), ("leader", "a")):
        optpo = OptPO(min_samples=2, max_samples=4, ties=ties)
        batch = replayed(optpo, [list("abab")])
        assert optpo.labels(batch) == [PseudoLabel(answer, "tied", 0.5)] and len(optpo.groups(batch)) == (answer == "a")
