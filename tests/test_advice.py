"""One story: what to change first, second and never is said alike wherever a user begins."""

import re
from pathlib import Path

import pytest

from apportion import Uniform, presets
from apportion.baselines import Optimal
from apportion.diagnosis.advice import advice_of
from apportion.records import open_run
from tests.test_cli import invoke

ROOT = Path(__file__).parents[1]
LOG = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
PLACES = ("README.md", "docs/trl.md", "docs/verl.md", "docs/index.md", "docs/diagnose.md")
SINGLES = (
    "allocation=uniform",
    "algorithm.adv_estimator=apportion_reinforce",
    "allocation.baseline=optimal",
    "rollout.n=1",
)


@pytest.mark.parametrize("place", PLACES)
def test_the_sentence_stands_in_every_document(place):
    assert presets.ADVICE in " ".join((ROOT / place).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("place", ["README.md", "docs/trl.md"])
def test_the_first_trainer_has_the_first_preset(place):
    text = (ROOT / place).read_text(encoding="utf-8")
    blocks = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "AllocatedGRPOTrainer(" in block
    ]
    assert "**singles().arguments()" in blocks[0] and "allocator=" not in blocks[0]


@pytest.mark.parametrize("place", ["README.md", "docs/verl.md"])
def test_the_first_verl_command_is_of_single_rollouts(place):
    text = (ROOT / place).read_text(encoding="utf-8")
    first = next(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "apportion.verl" in block)
    assert all(override in first for override in SINGLES)


def test_the_presets_are_what_the_first_page_says_of_them():
    singles, groups = presets.singles(), presets.fixed_baseline()
    assert (singles.allocator, singles.estimator) == (Uniform(1), "reinforce")
    assert (groups.allocator, groups.estimator) == (Uniform(), "reinforce")
    assert isinstance(singles.baseline, Optimal) and groups.baseline is not singles.baseline
    rows = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    written = 'allocator=Uniform({}), estimator="reinforce", baseline=Optimal()'
    for name, each in (("singles", "1"), ("fixed_baseline", "")):
        assert f'`preset="{name}"`, which is `{written.format(each)}`' in rows


def test_diagnose_advises_in_the_same_order():
    found = advice_of(open_run(LOG))
    order = [each.change.split()[0] for each in (*found.recommended, *found.considered)]
    full = invoke("diagnose", str(LOG), "--full").stdout
    assert presets.ADVICE in " ".join(full.split())
    assert order.index("Give") < order.index("Split") < order.index("Choose")
