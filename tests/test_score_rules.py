"""The script that scores plain functions on the recorded run agrees with ``replay``, and takes a file of rules."""

import runpy

import numpy as np
import pytest

from apportion import HORA, VIP, ExploreThenCommit
from apportion.predictors import DiscountedCounts
from apportion.records import record_of_visits
from apportion.replay import replay
from tests.cases import check_refused
from tests.test_house import ROOT
from tests.warm import forked

SCRIPT = ROOT / "examples" / "score_rules.py"
SCORING = runpy.run_path(str(SCRIPT))
RULES = runpy.run_path(str(ROOT / "examples" / "scored_rules.py"), run_name="rules")


@pytest.fixture(scope="module")
def right():
    """The first 12 visits of 300 prompts: batches of 128, 128 and 44."""
    return SCORING["recorded"]()[:300, :12]


def ratios(rule, right):
    own, even, _ = SCORING["score"](rule, right)
    return own / even


def replayed(rule, right, observe="recorded"):
    record = record_of_visits(list(right), SCORING["SIZE"], [str(q) for q in range(len(right))])
    (found,) = replay(record, {"rule": rule}, observe=observe, outcomes="expected").allocators
    return [found.ratios[loss].value for loss in ("variance", "signal")]


def test_vip_has_the_figures_of_replay(right):
    expected = replayed(VIP(rollouts_per_prompt=8, predictor=DiscountedCounts()), right)
    assert ratios(RULES["vip_counts"], right)[:2] == pytest.approx(expected, rel=1e-9)
    assert expected[0] < 0.95 and expected[1] > 1.05


@pytest.mark.parametrize(
    ("name", "rule"),
    [("hora", HORA(rollouts_per_prompt=8, pre_rollouts=4)), ("cgrpo_alike", ExploreThenCommit(pilots=2, high=32))],
)
def test_rules_that_draw_have_the_figures_of_replay_up_to_their_draws(name, rule, right):
    assert ratios(RULES[name], right)[:2] == pytest.approx(replayed(rule, right, "own"), rel=0.05)


def test_an_even_split_is_one_and_a_shuffled_rule_teaches_as_much(right):
    own, even, shuffled = SCORING["score"](RULES["even"], right)
    assert (own == even).all() and (shuffled == even).all() and own[2] == 8 * right.size
    own, even, shuffled = SCORING["score"](RULES["vip_counts"], right)
    assert shuffled[1] / even[1] == pytest.approx(1, abs=0.02) and shuffled[0] > even[0] > own[0]


def test_a_rule_sees_the_past_alone(right):
    seen = []

    def rule(history, prompts, budget, draw):
        seen.append((history >= 0).sum())
        assert (history[prompts] >= 0).sum() == len(prompts) * (len(seen) - 1)
        assert budget == 8 * len(prompts)
        history[:] = 0  # a copy
        return np.full(len(prompts), 8)

    few = right[:100]
    SCORING["score"](rule, few)
    assert seen == [100 * visit for visit in range(12)]


def test_counts_that_make_no_sense_are_refused(right):
    def score(counts):
        def mine(history, prompts, budget, draw):
            draw(np.full(len(prompts), 2))
            return counts

        SCORING["score"](mine, right[:100])

    told = r"(?s)mine must return integers \[100\].*return the rollouts"
    check_refused(ValueError, score, [([8], told), ([7.5] * 100, told), ([1] * 100, told)])


def test_a_user_s_file_of_rules_is_taken(tmp_path):
    mine = "import numpy as np\n\n\ndef mine(history, prompts, budget, draw):\n    return _eight(prompts)\n\n\n"
    (tmp_path / "mine.py").write_text(mine + "def _eight(prompts):\n    return np.full(len(prompts), 8)\n")
    done = forked([SCRIPT, "mine.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    head, rule = done.stdout.splitlines()[-2:]
    assert head.split() == ["rule", "rollouts", "variance", "shuffled", "signal", "shuffled"]
    assert rule.split() == ["mine", "1.000x", *["1.000"] * 4]


def test_the_table_of_the_page_is_what_the_script_prints():
    done = forked([SCRIPT])
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "cite.md").read_text()
    printed = [line.split() for line in done.stdout.splitlines() if "x " in line]
    assert len(printed) == 7
    for name, rollouts, *figures in printed:
        assert "| " + " | ".join([f"`{name}`", *figures]) + " |" in page
        assert rollouts == "1.000x" or f"`{name}` {rollouts}" in page
