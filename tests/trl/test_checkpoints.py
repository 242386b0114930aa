"""A killed run that is resumed ends like an uninterrupted one, and checkpoints of other runs are refused."""

import json
import signal
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from apportion import AR3PO, HORA, VIP, Uniform
from apportion.baselines import SPO
from apportion.engines.saved_state import SavedStateError, save_state
from apportion.predictors import DiscountedCounts
from apportion.presets import fixed_baseline
from apportion.records import RecordError, read_log
from apportion.selection import LargestVariance, Mixed
from apportion.trl import AllocatedGRPOTrainer, checkpoints
from apportion.trl.planner import Response
from apportion.trl.rows import unpack_row
from apportion.types import Rollout
from tests.hostile import FILES, MARKER
from tests.soak import case
from tests.trl.scripts import resumed
from tests.trl.scripts.policy import digest, history, make_trainer
from tests.trl.tiny import make_questions

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def processes():
    """Return a context for processes that share imports, and nothing else, with each other."""
    context = get_context("forkserver")
    context.set_forkserver_preload([resumed.__name__])
    return context


KILLED = ("vip, counts", "dapo, a selection, two batches a step")
"""The runs that are killed in the suite. ``make soak`` kills all."""


def ran(processes, *arguments, **settings):
    """Return the exit code of a process of ``resumed.run``: 0, or minus the number of a signal."""
    process = processes.Process(target=resumed.run, args=arguments, kwargs=settings)
    process.start()
    process.join(timeout=120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.xdist_group("forks")  # one worker process, so that one server imports TRL
@pytest.mark.parametrize("name", [case(name, suite=name in KILLED) for name in resumed.CASES])
def test_a_killed_run_resumes_like_an_uninterrupted_one(processes, tmp_path, name):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ran(processes, name, whole) == 0
    assert ran(processes, name, killed, killed=True) == -signal.SIGKILL
    assert [path.name for path in (killed / "run").glob("checkpoint-*")] == [f"checkpoint-{resumed.EVERY}"]
    begun = read_log(killed / "log")
    assert ran(processes, name, killed, resume=True) == 0
    log = logged_steps(whole / "log")
    assert log.num_rows > begun.num_rows and logged_steps(killed / "log").equals(log)
    expected, found = (json.loads((folder / "found.json").read_text()) for folder in (whole, killed))
    assert len(expected["history"]) == resumed.STEPS
    assert found == expected
    if name.startswith(("ar3po", "pilot_commit")):
        reused = [row["step"] for row in log.to_pylist() if row["reused_step"] is not None]
        assert max(reused) >= max(begun["step"].to_pylist())
    if name == "dapo":
        assert max(step["allocation/prompts"] for step in expected["history"]) > 4


def logged_steps(folder):
    """Return the rollout log without its times."""
    return read_log(folder).drop_columns("written")


def trained(folder, allocator, kind=AllocatedGRPOTrainer, resume=None, steps=2, questions=8, given=None, **config):
    config = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1} | config
    given = {"questions": make_questions(questions)} | (given or {})
    trainer = make_trainer(kind, folder, None, allocator, config=config, **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def hora():
    return HORA(pre_rollouts=2, rollouts_per_prompt=4)


def test_a_checkpoint_of_a_run_without_an_allocator_is_refused(tmp_path):
    trained(tmp_path, None, GRPOTrainer)
    with pytest.raises(ValueError, match=r"must hold the allocator's state, got .*checkpoint-1 without"):
        trained(tmp_path, hora(), resume=str(tmp_path / "checkpoint-1"))


def test_a_checkpoint_of_weights_alone_is_refused(tmp_path):
    trained(tmp_path, hora(), save_only_model=True)
    assert not list(tmp_path.glob("checkpoint-*/apportion*"))
    with pytest.raises(ValueError, match="must hold the allocator's state"):
        trained(tmp_path, hora(), resume=True)


def test_a_checkpoint_of_another_allocator_is_refused(tmp_path):
    trained(tmp_path, VIP(rollouts_per_prompt=4, predictor=DiscountedCounts()))
    with pytest.raises(ValueError, match=r"must be of the same allocator, hora, got vip in .*apportion.pt"):
        trained(tmp_path, hora(), resume=True)


def test_a_checkpoint_of_the_same_allocator_with_other_settings_is_refused(tmp_path):
    trained(tmp_path, AR3PO(stages=2, rollouts_per_stage=2))
    with pytest.raises(ValueError, match="stages"):
        trained(tmp_path, AR3PO(stages=3, rollouts_per_stage=2), resume=True)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (
            {"allocator": hora()},
            {"allocator": HORA(pre_rollouts=1, rollouts_per_prompt=4)},
            r"allocator.pre_rollouts must be 2, as in the run that wrote the checkpoint, got 1; set it to 2, or start",
        ),
        (
            {"allocator": HORA(pre_rollouts=2)},
            {"allocator": HORA(pre_rollouts=2), "num_generations": 8},
            r"allocator.rollouts_per_prompt must be 4, as in the run that wrote the checkpoint, got 8; set it to 4",
        ),
        (
            {"allocator": Uniform(), "estimator": "spo", "baseline": SPO(rho=0.9)},
            {"allocator": Uniform(), "estimator": "spo", "baseline": SPO(rho=0.5)},
            r"baseline.rho must be 0.9, as in the run that wrote the checkpoint, got 0.5; set it to 0.9",
        ),
        (
            {"allocator": Uniform(), "selection": Mixed(group_size=4)},
            {"allocator": Uniform(), "selection": Mixed(group_size=6)},
            r"selection.group_size must be 4, as in the run that wrote the checkpoint, got 6; set it to 4",
        ),
    ],
)
def test_a_checkpoint_of_the_same_parts_with_other_settings_is_refused(tmp_path, before, now, message):
    trained(tmp_path, before.pop("allocator"), steps=1, given=before)
    config = {"num_generations": now.pop("num_generations")} if "num_generations" in now else {}
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, now.pop("allocator"), resume=True, given=now, **config)


def test_a_preset_resumes_under_its_name_and_spelled_out_and_another_is_refused(tmp_path):
    named, parts = {"preset": "fixed_baseline", "weighting": "rollout"}, fixed_baseline().arguments()
    settings, half = {"steps": 4, "questions": 16}, str(tmp_path / "checkpoint-2")
    whole = trained(tmp_path, None, given=named, **settings)
    for allocator, given in ((None, named), (parts.pop("allocator"), parts)):
        again = trained(tmp_path, allocator, resume=half, given=given, **settings)
        assert history(again) == history(whole) and digest(again.model) == digest(whole.model)
    with pytest.raises(ValueError, match=r"allocator.rollouts_per_prompt must be 4, as in the run that .*, got 1; "):
        trained(tmp_path, None, resume=half, given={"preset": "singles"}, **settings)


def test_a_checkpoint_without_settings_resumes(tmp_path):
    """Those of earlier versions have none."""
    trained(tmp_path, hora(), steps=1)
    folder = tmp_path / "checkpoint-1"
    saved = checkpoints.load(folder, "hora")
    checkpoints.save(folder, replace(saved, settings={}, iterations=None, log=None))
    assert trained(tmp_path, hora(), resume=True).state.global_step == 2


def test_other_iterations_are_refused_in_the_middle_of_a_batch_alone(tmp_path):
    trained(tmp_path, hora(), num_iterations=2)
    message = "in the middle of a generation batch must be resumed with as many num_iterations, 2, got 3; set them so"
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, hora(), resume=str(tmp_path / "checkpoint-1"), num_iterations=3)
    again = trained(tmp_path, hora(), resume=str(tmp_path / "checkpoint-2"), steps=3, num_iterations=3)
    assert again.state.global_step == 3


def logged(folder, steps=2, resume=None, **given):
    given = {"rollout_log": folder / "log"} | given
    return trained(folder, hora(), steps=steps, resume=resume, given=given)


def test_a_new_run_is_refused_a_log_with_steps(tmp_path):
    logged(tmp_path)
    before = read_log(tmp_path / "log")
    message = (
        rf"needs a rollout log without steps, got {tmp_path}/log with 2 of another run; choose another folder, rem"
    )
    with pytest.raises(RecordError, match=message):
        logged(tmp_path)
    assert read_log(tmp_path / "log").equals(before)


def test_a_resumed_run_goes_on_with_its_own_log_or_a_new_one(tmp_path):
    logged(tmp_path, steps=3)
    whole = logged_steps(tmp_path / "log")
    logged(tmp_path, steps=3, resume=str(tmp_path / "checkpoint-2"))
    assert logged_steps(tmp_path / "log").equals(whole)
    logged(tmp_path, steps=3, resume=str(tmp_path / "checkpoint-2"), rollout_log=tmp_path / "new")
    assert set(read_log(tmp_path / "new").column("step").to_pylist()) == {2}


def test_a_resumed_run_is_refused_the_log_of_another(tmp_path):
    logged(tmp_path / "one")
    logged(tmp_path / "other")
    before = read_log(tmp_path / "other" / "log")
    with pytest.raises(RecordError, match=r"a resumed run needs its own rollout log, got .*other/log with 2 steps of "):
        logged(tmp_path / "one", resume=str(tmp_path / "one" / "checkpoint-1"), rollout_log=tmp_path / "other" / "log")
    assert read_log(tmp_path / "other" / "log").equals(before)


def test_a_trainer_that_trains_again_goes_on_with_its_log(tmp_path):
    trainer = logged(tmp_path)
    trainer.train()
    assert set(read_log(tmp_path / "log").column("step").to_pylist()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_batch_left_by_an_earlier_run_is_not_used(tmp_path):
    trained(tmp_path, hora(), steps_per_generation=4)
    left = (tmp_path / "checkpoint-1" / "apportion_batch_0.pt").read_bytes()
    whole = trained(tmp_path, hora(), steps=3)
    assert not list(tmp_path.glob("checkpoint-*/apportion_batch_*"))
    (tmp_path / "checkpoint-1" / "apportion_batch_0.pt").write_bytes(left)
    again = trained(tmp_path, hora(), steps=3, resume=str(tmp_path / "checkpoint-1"))
    assert history(again) == history(whole) and digest(again.model) == digest(whole.model)


@pytest.mark.slow
def test_every_checkpoint_resumes_alike_in_any_epoch_and_any_part_of_a_batch(tmp_path):
    settings = {"steps": 6, "num_iterations": 2, "questions": 4}
    whole = trained(tmp_path, hora(), **settings)
    for step in (1, 4):
        again = trained(tmp_path, hora(), resume=str(tmp_path / f"checkpoint-{step}"), **settings)
        assert history(again) == history(whole) and digest(again.model) == digest(whole.model)


def mixed():
    return {"selection": Mixed(group_size=4)}


SELECTED = (
    ({}, 8, [2]),
    ({"num_iterations": 2}, 8, [6]),
    ({"steps_per_generation": 4, "num_iterations": 2}, 9, [3, 8]),
    ({"steps_per_generation": 1, "per_device_train_batch_size": 16}, 5, [3]),
)
"""Settings, steps, and the checkpoints that a run of the suite resumes. ``make soak`` resumes all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "steps", "resumed"),
    [
        *SELECTED,
        *(pytest.param(given, steps, range(1, steps), marks=pytest.mark.soak) for given, steps, _ in SELECTED),
    ],
)
def test_under_a_selection_checkpoints_resume_alike(tmp_path, settings, steps, resumed):
    """An epoch has 3 batches. Checkpoints lie in its middle, at its end, and in the middle of a batch."""
    settings = settings | {"steps": steps, "questions": 12}
    whole = trained(tmp_path, hora(), given=mixed(), **settings)
    for step in resumed:
        again = trained(tmp_path, hora(), resume=str(tmp_path / f"checkpoint-{step}"), given=mixed(), **settings)
        assert history(again) == history(whole) and digest(again.model) == digest(whole.model)
    left = [step["selection/never_chosen"] for step in history(whole) if "selection/never_chosen" in step]
    assert left == sorted(left, reverse=True) and left[-1] <= 1 / 12


def test_a_run_that_skips_no_data_chooses_anew(tmp_path):
    settings = {"questions": 12, "ignore_data_skip": True}
    trained(tmp_path, hora(), given=mixed(), **settings)
    again = trained(tmp_path, hora(), resume=str(tmp_path / "checkpoint-1"), given=mixed(), steps=3, **settings)
    assert again._sampler.chosen and again.allocation.selection.steps == 2 + 3


def test_a_selection_of_another_kind_or_with_other_settings_is_refused(tmp_path):
    trained(tmp_path, hora(), given=mixed())
    for selection, message in (
        (LargestVariance(), "selection must be 'mixed', as in the run that wrote the checkpoint, got 'variance'"),
        (Mixed(group_size=8), "selection.group_size must be 4, as in the run that wrote the checkpoint, got 8"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(tmp_path, hora(), resume=True, given={"selection": selection})
    with pytest.raises(
        ValueError, match=r"must be of a run without a selection, got .* with; resume with the selection"
    ):
        trained(tmp_path, hora(), resume=True)


def test_a_checkpoint_in_mid_epoch_needs_batches_of_as_many_prompts(tmp_path):
    trained(tmp_path, hora(), given=mixed(), questions=16)
    with pytest.raises(
        SavedStateError, match=r"apportion\.pt: a checkpoint in the middle of an epoch must be resumed with"
    ):
        trained(tmp_path, hora(), resume=True, given=mixed(), questions=16, per_device_train_batch_size=16)


def saved(folder, **values):
    given = {"allocator": {}, "baseline": None, "name": "hora", "drawn": 3, "batches": 2, "step": 5}
    learnt = checkpoints.SavedState(**given | values)
    checkpoints.save(folder, learnt)
    return learnt


def test_state_and_batch_are_loaded_as_saved(tmp_path):
    learnt = saved(tmp_path, allocator={"successes": [1.0, 2.0]}, sharing=(2, 1))
    assert checkpoints.load(tmp_path, "hora") == learnt
    for rank in (0, 1):
        checkpoints.save_batch(tmp_path, rank, [{"advantages": torch.tensor([0.5, rank]), "num_items_in_batch": None}])
    for rank in (0, 1):
        (chunk,) = checkpoints.load_batch(tmp_path, rank, (2, 1), CPU, learnt)
        assert chunk["advantages"].tolist() == [0.5, rank] and chunk["num_items_in_batch"] is None


def test_a_batch_shared_by_other_numbers_is_refused(tmp_path):
    learnt = saved(tmp_path, sharing=(2, 1))
    checkpoints.save_batch(tmp_path, 0, [{"advantages": torch.zeros(2)}])
    for sharing in ((1, 1), (2, 4)):
        with pytest.raises(ValueError, match=r"steps_per_generation, 2 and 1, got . and .; set them so"):
            checkpoints.load_batch(tmp_path, 0, sharing, CPU, learnt)


def test_an_added_or_removed_baseline_is_refused(tmp_path):
    saved(tmp_path)
    with pytest.raises(ValueError, match=r"must be of a run with a baseline, got .* without; resume with the baseline"):
        checkpoints.load(tmp_path, "hora", baseline=True)
    saved(tmp_path, baseline={"baseline": "zero"})
    with pytest.raises(ValueError, match="must be of a run without a baseline"):
        checkpoints.load(tmp_path, "hora")


def test_between_two_batches_any_number_of_ranks_resumes(tmp_path):
    learnt = saved(tmp_path)
    checkpoints.save_batch(tmp_path, 0, [{"advantages": torch.zeros(2)}])
    assert checkpoints.load_batch(tmp_path, 0, (3, 1), CPU, learnt) is None


def test_a_state_of_another_version_is_refused(tmp_path):
    saved(tmp_path)
    torch.save({"version": 1, "allocator": {}}, tmp_path / checkpoints.FILE)
    with pytest.raises(ValueError, match=r"apportion\.pt: .* a pickle of an earlier version or of something else"):
        checkpoints.load(tmp_path, "hora")


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_in_a_checkpoint_is_refused_in_one_line_and_runs_no_code(tmp_path, name):
    learnt = saved(tmp_path, sharing=(1, 1))
    content = FILES[name](tmp_path / MARKER)
    for path, load in (
        (tmp_path / checkpoints.FILE, lambda: checkpoints.load(tmp_path, "hora")),
        (tmp_path / "apportion_batch_0.pt", lambda: checkpoints.load_batch(tmp_path, 0, (1, 1), CPU, learnt)),
    ):
        path.write_bytes(content)
        with pytest.raises(SavedStateError) as caught:
            load()
        said = str(caught.value)
        assert said.startswith(f"{path}: ") and said.endswith(f"; {checkpoints.REMEDY}") and "\n" not in said
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize(
    "state", [None, {"allocator": {}}, {"drawn": -1}, {"step": -1}, {"sharing": (0, 1)}, {"drawn": "3"}]
)
def test_a_forged_state_is_refused(tmp_path, state):
    path = tmp_path / checkpoints.FILE
    if state is None or "allocator" in state:
        save_state(path, checkpoints.KIND, state)
    else:
        learnt = saved(tmp_path)
        for key, value in state.items():
            object.__setattr__(learnt, key, value)
        save_state(path, checkpoints.KIND, learnt)
    with pytest.raises(SavedStateError, match=r"apportion\.pt: "):
        checkpoints.load(tmp_path, "hora")


@pytest.mark.parametrize(
    "chunks",
    [
        None,
        [],
        [{}],
        [{"advantages": torch.zeros(2)}] * 2,
        [{"advantages": "text"}],
        [{"advantages": torch.zeros(2), "completion_ids": torch.zeros(3, 4)}],
    ],
)
def test_a_forged_batch_is_refused(tmp_path, chunks):
    save_state(tmp_path / "apportion_batch_0.pt", checkpoints.BATCH_KIND, chunks)
    with pytest.raises(SavedStateError, match=r"apportion_batch_0\.pt: .*micro-batches"):
        checkpoints.load_batch(tmp_path, 0, (1, 1), CPU, saved(tmp_path, sharing=(1, 1)))


def test_a_missing_batch_is_refused(tmp_path):
    with pytest.raises(SavedStateError, match=r"must hold it, got no such file; resume from another"):
        checkpoints.load_batch(tmp_path, 0, (1, 1), CPU, saved(tmp_path, sharing=(1, 1)))


def test_a_response_for_reuse_comes_back_with_its_row(tmp_path):
    row = {"completion_ids": torch.arange(3)[None], "old_logps": torch.tensor([[0.1, 0.2, 0.3]])}
    stored = Rollout(
        True, completion=Response(np.arange(3, dtype=np.int32), [{"role": "assistant", "content": "4"}], (1.0,), 2, row)
    )
    saved(tmp_path, allocator={"store": [("id", stored.completion)]})
    ((_, found),) = checkpoints.load(tmp_path, "hora").allocator["store"]
    assert found.tokens.tolist() == [0, 1, 2] and found.tokens.dtype == np.int32
    assert (found.content, found.scores, found.place) == (stored.completion.content, (1.0,), 2)
    assert all(torch.equal(found.row[key], row[key]) for key in row)


def test_a_response_of_an_earlier_step_keeps_its_ids_scores_and_row_in_less_memory():
    ids = torch.tensor([[151_000, 2, 3]])
    row = {
        "prompt_ids": ids,
        "prompt_mask": torch.ones(1, 3, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": torch.tensor([[1, 1, 0]]),
        "old_per_token_logps": torch.tensor([[-0.1, -0.2, -0.3]]),
        "old_logps": torch.tensor([-0.6]),
    }
    kept = Response(ids[0].numpy().astype(np.int32), "a long text", (1.0, 0.5), 7, row).for_reuse()
    assert (kept.tokens.tolist(), kept.content, kept.scores) == ([151_000, 2, 3], None, (1.0, 0.5))
    assert sum(value.nbytes for value in kept.row.values()) <= sum(value.nbytes for value in row.values()) / 2
    back = unpack_row(kept.row, row)
    assert back.keys() == row.keys() and all(back[key].dtype == row[key].dtype for key in row)
    assert all(torch.equal(back[key], row[key]) for key in row)
    assert Response(kept.tokens, "a text", (1.0,), 7).for_reuse().row is None
