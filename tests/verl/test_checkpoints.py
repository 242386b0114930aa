"""The allocator's state in verl's checkpoints: written by its callback, found where verl itself resumes."""

from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from apportion import Batch, Belief, Plan, Prompt, Rollout, Uniform
from apportion.engines.saved_state import SavedStateError, load_state, save_state
from apportion.verl.checkpoints import FILE, KIND, load_into, resumed_file
from apportion.verl.checks import SAVED
from apportion.verl.coordinator.messages import WrittenRollout
from tests.hostile import FILES, MARKER
from tests.verl.coordinator.worker_pool import Settings, Watched, WorkerPool, coordinator_factory

STATE = {"name": "vip", "allocator": {"seen": np.arange(3)}, "drawn": 7}


NOTHING = {"baseline": None, "selection": None}
"""What a checkpoint holds of an allocation without them."""


def configured(folder, mode="auto", path=None):
    trainer = {
        "default_local_dir": str(folder),
        "resume_mode": mode,
        "resume_from_path": path and str(path),
        "del_local_ckpt_after_load": False,
        "checkpoint_callback_class": SAVED,
    }
    return OmegaConf.create({"trainer": trainer})


def saved(folder, *steps, ours=True):
    """Checkpoints of these steps as verl leaves them; the last is the latest."""
    for step in steps:
        own = folder / f"global_step_{step}"
        own.mkdir(parents=True)
        if ours:
            save_state(own / FILE, KIND, STATE | {"step": step})
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def resumed_by_verl(config):
    """The folder that verl's trainer loads; None where it begins from scratch."""
    loaded = []
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.use_critic = config, "sync", False
    trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda local_path, **_: loaded.append(local_path))
    trainer._load_checkpoint()
    return loaded[0].removesuffix("/actor") if loaded else None


@pytest.mark.parametrize(
    ("mode", "path", "expected"),
    [
        ("auto", None, "global_step_8"),
        ("auto", "global_step_4", "global_step_8"),
        ("resume_path", "global_step_4", "global_step_4"),
        ("disable", None, None),
        ("disable", "global_step_4", None),
    ],
)
@pytest.mark.parametrize("relative", [True, False])
def test_it_is_found_where_verl_resumes(tmp_path, monkeypatch, mode, path, expected, relative):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "runs" / "toy", 2, 4, 8)
    folder = "runs/toy" if relative else tmp_path / "runs" / "toy"
    config = configured(folder, mode, path and f"{folder}/{path}")
    found = resumed_file(config)
    assert (None if found is None else str(found.parent)) == resumed_by_verl(config)
    assert (found and found.parent.name) == expected
    assert found is None or load_state(found, KIND, remedy="")["step"] == int(expected.removeprefix("global_step_"))


def test_a_first_run_has_nothing_to_resume(tmp_path):
    config = configured(tmp_path / "runs")
    assert resumed_file(config) is None and resumed_by_verl(config) is None


@pytest.mark.parametrize("mode", ["auto", "resume_path"])
def test_a_checkpoint_of_a_run_without_an_allocator_is_refused(tmp_path, mode):
    saved(tmp_path, 4, ours=False)
    with pytest.raises(ValueError, match=r"must hold the allocator's state, got .*global_step_4 without alloc"):
        resumed_file(configured(tmp_path, mode, tmp_path / "global_step_4"))


@pytest.mark.parametrize("mode", ["resume_path", "Auto"])
def test_a_mode_without_a_checkpoint_to_resume_is_refused(tmp_path, mode):
    saved(tmp_path, 4)
    with pytest.raises(ValueError, match=f"must be the folder of a checkpoint with resume_mode={mode}, got None"):
        resumed_file(configured(tmp_path, mode))


def test_the_callback_saves_the_coordinators_state_beside_the_weights(ray, tmp_path):
    class Coordinator:
        def state(self):
            return STATE

    saved(tmp_path, 4, ours=False)
    manager = SimpleNamespace(coordinator=ray.remote(num_cpus=0)(Coordinator).remote())
    config = configured(tmp_path)
    build_checkpoint_callback(config).on_save(
        trainer=SimpleNamespace(agent_loop_manager=manager),
        global_step=4,
        checkpoint_dir=str(tmp_path / "global_step_4"),
        async_save=False,
    )
    found = load_state(resumed_file(config), KIND, remedy="")
    assert found["allocator"].pop("seen").tolist() == [0, 1, 2]
    assert found == {"name": "vip", "allocator": {}, "drawn": 7}
    assert [path.name for path in (tmp_path / "global_step_4").iterdir()] == [FILE]


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_in_a_checkpoint_is_refused_in_one_line_and_runs_no_code(tmp_path, name):
    path = tmp_path / FILE
    path.write_bytes(FILES[name](tmp_path / MARKER))
    with coordinator_factory(tmp_path) as make, pytest.raises(SavedStateError) as caught:
        load_into(make(Settings(Uniform()), WorkerPool()), path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "resume from another checkpoint" in said and "\n" not in said
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"name": ["uniform"]},
        {"name": "vip"},
        {"allocator": {"secret": 1}},
        {"allocator": None},
        {"drawn": -1},
        {"drawn": "7"},
        {"unfinished": [1]},
        {"unfinished": None},
        {"another": 1},
    ],
)
def test_a_forged_state_in_a_checkpoint_is_refused(tmp_path, change):
    path = tmp_path / FILE
    save_state(path, KIND, {"name": "uniform", "allocator": {}, "drawn": 0, "unfinished": []} | change)
    with coordinator_factory(tmp_path) as make, pytest.raises(SavedStateError) as caught:
        load_into(make(Settings(Uniform()), WorkerPool()), path)
    assert str(caught.value).startswith(f"{path}: ")


def test_batches_within_a_round_are_learned_from_after_a_resume(tmp_path):
    """A batch has arrays, beliefs and rollouts, which the file holds as records."""
    completion = WrittenRollout(b"digest", "h1-0", 2, (5, 3), outputs=({"prompt_ids": [1], "metrics": {"a": 0.5}},))
    batch = Batch.start([Prompt("a"), Prompt("b")], Belief.uniform(2)).add(
        Plan([1, 2]), [[Rollout(True, completion=completion)], [Rollout(False)]]
    )
    path, learned = tmp_path / FILE, []
    save_state(path, KIND, {"name": "uniform", "allocator": {}, "drawn": 3, "unfinished": [batch]} | NOTHING)
    with coordinator_factory(tmp_path) as make:
        coordinator = make(Settings(Watched(Uniform())), WorkerPool())
        load_into(coordinator, path)
        learned = coordinator.allocation.allocator.learned
    assert learned == [batch] and learned[0].rollouts[0][0].completion == completion
