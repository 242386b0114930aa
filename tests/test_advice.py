"""One story: what to change first, second and never is said alike wherever a user begins."""

import re

import pytest

from apportion import Uniform, presets
from apportion.baselines import Optimal
from tests.commands import invoke
from tests.test_docs import ROOT, few_recorded

PLACES = ("README.md", "docs/trl.md", "docs/verl.md", "docs/index.md", "docs/diagnose.md")


def text_of(place):
    return (ROOT / place).read_text()


def first_block(place, kind, mark):
    """Return the first block of code of this kind that holds ``mark``."""
    return next(block for block in re.findall(rf"```{kind}\n(.*?)```", text_of(place), re.DOTALL) if mark in block)


def test_the_sentence_stands_in_every_document():
    assert not [place for place in PLACES if presets.ADVICE not in " ".join(text_of(place).split())]


@pytest.mark.parametrize("place", ["README.md", "docs/trl.md", "docs/verl.md"])
def test_the_first_trainer_and_the_first_verl_command_have_a_baseline_from_history(place):
    if place != "docs/verl.md":
        block = first_block(place, "python", "AllocatedGRPOTrainer(")
        assert 'preset="fixed_baseline"' in block and "allocator=" not in block
    if place != "docs/trl.md":
        assert "allocation=fixed_baseline" in first_block(place, "sh", "apportion.verl")


def test_the_presets_are_what_the_first_page_says_of_them():
    singles, groups = presets.singles(), presets.fixed_baseline()
    assert (singles.allocator, singles.estimator) == (Uniform(1), "reinforce")
    assert (groups.allocator, groups.estimator) == (Uniform(), "reinforce")
    assert isinstance(singles.baseline, Optimal) and groups.baseline is not singles.baseline
    written = 'allocator=Uniform({}), estimator="reinforce", baseline=Optimal()'
    for name, each in (("singles", "1"), ("fixed_baseline", "")):
        assert f'`preset="{name}"`, which is `{written.format(each)}`' in text_of("docs/index.md")


def test_diagnose_advises_in_the_same_order(tmp_path):
    full = " ".join(invoke("diagnose", str(few_recorded(tmp_path)), "--full").stdout.split())
    assert presets.ADVICE in full
    assert re.findall(r" \d\. (Give|Split|Choose) ", full)[:3] == ["Give", "Split", "Choose"]
