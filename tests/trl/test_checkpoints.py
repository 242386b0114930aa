"""A killed run that is resumed ends like an uninterrupted one, and checkpoints of other runs are refused."""

import json
import signal
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from apportion import AR3PO, HORA, VIP
from apportion.engines.saved_state import SavedStateError, save_state
from apportion.predictors import DiscountedCounts
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, checkpoints
from apportion.trl.planner import Response
from apportion.types import Rollout
from tests.hostile import FILES, MARKER
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


def ran(processes, *arguments, **settings):
    """Return the exit code of a process of ``resumed.run``: 0, or minus the number of a signal."""
    process = processes.Process(target=resumed.run, args=arguments, kwargs=settings)
    process.start()
    process.join(timeout=120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("name", resumed.CASES)
def test_a_killed_run_resumes_like_an_uninterrupted_one(processes, tmp_path, name):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ran(processes, name, whole) == 0
    assert ran(processes, name, killed, killed=True) == -signal.SIGKILL
    assert [path.name for path in (killed / "run").glob("checkpoint-*")] == [f"checkpoint-{resumed.EVERY}"]
    begun = read_log(killed / "log")
    assert ran(processes, name, killed, resume=True) == 0
    log = read_log(whole / "log")
    assert log.num_rows > begun.num_rows and read_log(killed / "log").equals(log)
    expected, found = (json.loads((folder / "found.json").read_text()) for folder in (whole, killed))
    assert len(expected["history"]) == resumed.STEPS
    assert found == expected
    if name.startswith("ar3po"):
        reused = [row["step"] for row in log.to_pylist() if row["reused_step"] is not None]
        assert max(reused) >= max(begun["step"].to_pylist())
    if name == "dapo":
        assert max(step["allocation/prompts"] for step in expected["history"]) > 4


def trained(folder, allocator, kind=AllocatedGRPOTrainer, resume=None, steps=2, questions=8, **config):
    config = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1} | config
    trainer = make_trainer(kind, folder, None, allocator, config=config, questions=make_questions(questions))
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
    for step in range(1, 6):
        again = trained(tmp_path, hora(), resume=str(tmp_path / f"checkpoint-{step}"), **settings)
        assert history(again) == history(whole) and digest(again.model) == digest(whole.model)


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
