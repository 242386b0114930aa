from dataclasses import replace

import pytest
import torch

from apportion.lab.policy.base import base_policy, trained_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.network import new_policy
from apportion.lab.policy.recipes import RECIPES, Recipe, Stage, cache_directory, task_of
from apportion.lab.world.demonstrator import EASY, MEDIUM
from apportion.lab.world.task import problem_pool
from tests.cases import refuse_lines, settings_of
from tests.lab.states import weights

BRIEF = Recipe((Stage(EASY, steps=4, learning_rate=3e-3), Stage(MEDIUM, steps=2, learning_rate=1e-3)), sequences=256)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "apportion"


def told(recipe):
    """Return the policy of ``recipe`` and what was told of its training."""
    steps = []
    return trained_policy(recipe, progress=lambda *step: steps.append(step)), steps


def test_a_recipe_is_trained_once_stage_by_stage_and_gives_the_same_bits_again(empty_cache, monkeypatch, tmp_path):
    torch.set_num_threads(2)
    try:
        first, steps = told(BRIEF)
        assert torch.get_num_threads() == 2  # left as it was
    finally:
        torch.set_num_threads(1)
    assert [step[:2] for step in steps] == [(1, 4), (2, 4), (3, 4), (4, 4), (1, 2), (2, 2)]
    assert all(0 < loss < 10 for _, _, loss in steps)
    again, steps = told(BRIEF)
    assert torch.equal(weights(first), weights(again)) and not steps and not again.training
    shared = replace(BRIEF, stages=(BRIEF.stages[0], Stage(EASY, steps=3, learning_rate=1e-3)))
    assert len(told(shared)[1]) == 3 and len(list(empty_cache.iterdir())) == 3
    assert [of for _, of, _ in told(replace(BRIEF, steps=0.5))[1]] == [2, 2, 1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    torch.manual_seed(5)
    assert torch.equal(weights(first), weights(trained_policy(BRIEF)))


def test_interrupted_training_leaves_nothing_that_looks_finished(empty_cache):
    def interrupt(step, steps, loss):
        if steps == 2 and step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained_policy(BRIEF, progress=interrupt)
    assert list(empty_cache.iterdir()) == [replace(BRIEF, stages=BRIEF.stages[:1]).directory]
    (empty_cache / ".unfinished-killed").mkdir()
    (empty_cache / ".unfinished-killed" / "model.safetensors").write_bytes(b"half a file")
    assert torch.isfinite(weights(trained_policy(BRIEF))).all()


def test_whoever_finishes_second_keeps_the_first_ones_policy(empty_cache):
    others = []

    def another_trainer_finishes(step, steps, loss):
        if steps == 2 and not others:
            others.append(None)
            others[0] = weights(trained_policy(BRIEF))
            (BRIEF.directory / "mark").touch()

    policy = trained_policy(BRIEF, progress=another_trainer_finishes)
    assert torch.equal(weights(policy), others[0])
    assert (BRIEF.directory / "mark").exists()
    assert not list(empty_cache.glob(".unfinished-*"))


def test_every_field_of_a_recipe_names_another_directory_and_the_names_stay():
    first, second = BRIEF.stages
    changes = [{}, {"steps": 0.5}, {"data_seed": 8}, {"clip": 2.0}, {"task": "forks"}]
    changes += [{"stages": (replace(first, learning_rate=1e-3), second)}]
    changes += [{"stages": (Stage(replace(EASY, seed=1), 4, 3e-3), second)}]
    recipes = [*(replace(BRIEF, **each) for each in changes), *RECIPES.values()]
    assert len({recipe.directory for recipe in recipes}) == len(recipes)
    assert {name: RECIPES[name].directory.name for name in ("easy", "medium", "hard")} == {
        "easy": "ledger-base-09c274d838149444",
        "medium": "ledger-base-99749c4eeb3d9e5a",
        "hard": "ledger-base-afc22fdeab98139d",
    }


def test_a_folder_knows_the_task_of_its_policy(empty_cache, tmp_path):
    forked = replace(BRIEF, task="forks")
    trained_policy(forked).save_pretrained(tmp_path / "forks")
    new_policy(0).save_pretrained(tmp_path / "silent")
    assert task_of(str(forked.directory)) == task_of(str(tmp_path / "forks")) == "forks"
    assert task_of(str(tmp_path / "silent")) == "ledger"
    assert [task_of(name) for name in RECIPES] == ["ledger", "ledger", "ledger", "forks", "notes"]
    with pytest.raises(ValueError, match="base must be"):
        task_of(str(tmp_path / "nowhere"))


def test_the_cache_is_under_xdg_cache_home_or_home(monkeypatch, tmp_path, empty_cache):
    assert cache_directory() == empty_cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "apportion"


def test_wrong_recipes_are_refused():
    with pytest.raises(
        ValueError, match=r"base must be easy, medium, hard, forks, notes, or a folder with .*, got 'brutal'"
    ):
        base_policy("brutal")
    wrong = """
        stages = []    => at least one stage
        steps = 0      => steps must be finite and above 0, got 0
        task = "knives" => task must be one of ledger, forks, notes, got 'knives'
    """
    refuse_lines(lambda text: replace(BRIEF, **settings_of(text)), wrong)


def test_a_short_training_already_learns_single_operations(small_base):
    singles = [problem for problem in problem_pool(400, seed=3) if len(problem.operations) == 1]
    assert exact_success(small_base, singles).mean() > 0.2  # chance is 0.1
