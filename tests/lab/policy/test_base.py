from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion.lab.policy.base import base_policy, trained_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.network import new_policy
from apportion.lab.policy.recipes import RECIPES, Recipe, Stage, cache_directory, task_of
from apportion.lab.world.demonstrator import EASY, MEDIUM
from apportion.lab.world.task import encode, problem_pool

BRIEF = Recipe((Stage(EASY, steps=4, learning_rate=3e-3), Stage(MEDIUM, steps=2, learning_rate=1e-3)), sequences=256)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "apportion"


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_a_recipe_gives_the_same_bits_again(tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        torch.manual_seed(len(found))
        found.append(weights(trained_policy(BRIEF)))
    assert torch.equal(*found)


def test_a_cached_policy_is_loaded_and_not_trained(empty_cache):
    first, steps = trained_policy(BRIEF), []
    again = trained_policy(BRIEF, progress=lambda *step: steps.append(step))
    assert torch.equal(weights(first), weights(again)) and not steps
    assert not again.training


def test_progress_tells_step_steps_and_loss(empty_cache):
    steps = []
    trained_policy(BRIEF, progress=lambda *step: steps.append(step))
    assert [step[:2] for step in steps] == [(1, 4), (2, 4), (3, 4), (4, 4), (1, 2), (2, 2)]
    assert all(np.isfinite(loss) and loss > 0 for _, _, loss in steps)


def test_recipes_with_a_common_first_stage_train_it_once(empty_cache):
    trained_policy(BRIEF)
    other, steps = replace(BRIEF, stages=(BRIEF.stages[0], Stage(EASY, steps=3, learning_rate=1e-3))), []
    trained_policy(other, progress=lambda *step: steps.append(step))
    assert len(steps) == 3
    assert len(list(empty_cache.iterdir())) == 3


def test_interrupted_training_leaves_nothing_that_looks_finished(empty_cache):
    def interrupt(step, steps, loss):
        if steps == 2 and step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained_policy(BRIEF, progress=interrupt)
    first_stage = replace(BRIEF, stages=BRIEF.stages[:1])
    assert list(empty_cache.iterdir()) == [first_stage.directory]
    assert not BRIEF.directory.exists()
    assert torch.isfinite(weights(trained_policy(BRIEF))).all()


def test_an_unfinished_directory_is_never_taken_for_a_policy(empty_cache):
    (empty_cache / ".unfinished-killed").mkdir(parents=True)
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


def test_every_field_of_a_recipe_names_another_directory():
    recipes = [
        BRIEF,
        replace(BRIEF, steps=0.5),
        replace(BRIEF, data_seed=8),
        replace(BRIEF, clip=2.0),
        replace(BRIEF, task="forks"),
        *RECIPES.values(),
    ]
    recipes.append(replace(BRIEF, stages=(replace(BRIEF.stages[0], learning_rate=1e-3), BRIEF.stages[1])))
    recipes.append(replace(BRIEF, stages=(Stage(replace(EASY, seed=1), 4, 3e-3), BRIEF.stages[1])))
    assert len({recipe.directory for recipe in recipes}) == len(recipes)


def test_the_ledger_recipes_keep_their_directories():
    """Names of cached bases must not change."""
    names = {name: RECIPES[name].directory.name for name in ("easy", "medium", "hard")}
    assert names == {
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
    assert [task_of(name) for name in RECIPES] == ["ledger", "ledger", "ledger", "forks"]
    with pytest.raises(ValueError, match="base must be"):
        task_of(str(tmp_path / "nowhere"))


def test_the_cache_is_under_xdg_cache_home_or_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "apportion"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "apportion"


def test_the_number_of_threads_is_left_as_it_was(empty_cache):
    torch.set_num_threads(2)
    try:
        trained_policy(BRIEF)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_steps_scale_the_whole_recipe(empty_cache):
    counted = []
    trained_policy(replace(BRIEF, steps=0.5), progress=lambda step, steps, loss: counted.append(steps))
    assert counted == [2, 2, 1]


def test_wrong_recipes_are_refused():
    with pytest.raises(
        ValueError, match="base must be easy, medium, hard, forks, or a folder with a saved policy, got 'brutal'"
    ):
        base_policy("brutal")
    with pytest.raises(ValueError, match="at least one stage"):
        Recipe(())
    with pytest.raises(ValueError, match="must be positive, got 0"):
        replace(BRIEF, steps=0)
    with pytest.raises(ValueError, match="task must be one of ledger, forks, got 'knives'"):
        replace(BRIEF, task="knives")
    with pytest.raises(ValueError, match="operation_weights must be 1 to 5, for 4 to 8 operations, got 6"):
        replace(BRIEF, task="forks", operation_weights=(1.0,) * 6)


def test_it_loads_as_an_ordinary_model_directory(empty_cache):
    policy = trained_policy(BRIEF)
    loaded = AutoModelForCausalLM.from_pretrained(BRIEF.directory, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(BRIEF.directory, local_files_only=True)
    assert loaded.dtype == torch.float32
    assert tokenizer("7 a+3 =")["input_ids"] == encode("7 a+3 =")
    assert torch.equal(weights(policy), weights(loaded))
    batch = tokenizer(["7 a+3 =", "7 a+3 b*7 ="], padding=True, return_tensors="pt")
    assert torch.equal(
        policy.generate(**batch, max_new_tokens=5, do_sample=False),
        loaded.generate(**batch, max_new_tokens=5, do_sample=False),
    )


def test_a_short_training_already_learns_single_operations(small_base):
    singles = [problem for problem in problem_pool(400, seed=3) if len(problem.operations) == 1]
    success = exact_success(small_base, singles)
    demonstrator = [MEDIUM.success(problem) for problem in singles]
    assert success.mean() > 0.2  # chance is 0.1
    assert np.corrcoef(success, demonstrator)[0, 1] > 0.2
