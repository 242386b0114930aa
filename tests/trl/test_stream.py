"""TRL's asynchronous trainer with an allocator: what it trains on, what a checkpoint keeps, and how a run ends."""

import importlib
import inspect
import os
import signal
import time
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

pytest.importorskip("trl.experimental.async_grpo.packing", reason="an early version of TRL")

from trl.experimental.async_grpo import AsyncGRPOTrainer, packing
from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol, WeightTransferProtocol

from apportion import AR3PO, HORA, VIP, InverseAccuracy
from apportion.allocators import Voting
from apportion.engines.saved_state import load_state
from apportion.scheduler.plain import restored
from apportion.selection import SPOWeights
from apportion.trl import AllocatedAsyncGRPOTrainer, seam
from apportion.trl.checkpoints import FILE, WholeCheckpoints
from apportion.trl.failures import RewardsFailedError
from apportion.trl.ranks import Ranks
from apportion.trl.stream import _MicroBatches, micro_batches
from apportion.trl.stream_sampler import StreamCompletion
from apportion.trl.stream_worker import KIND, StreamWorkerError
from tests.trl import tiny
from tests.trl.scripts.streamed import judge, make, without_gpu


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    without_gpu(monkeypatch.setattr)


class Faulty:
    """A reward function with ``faults`` by the first character of a completion: what it returns, or an exception.

    That of "any" is raised in every call, and ``first`` in the first one of a process.
    """

    __name__ = "faulty"

    def __init__(self, faults=(), hangs=False, first=None):
        self.faults, self.hangs, self.first = dict(faults), hangs, first

    def __call__(self, completions, k, **columns):
        if self.hangs:
            time.sleep(600)
        found = [self.faults.get(text[:1], tiny.mark(text, each)) for text, each in zip(completions, k, strict=True)]
        first, self.first = self.first, None
        for each in (first, self.faults.get("any"), *found):
            if isinstance(each, Exception):
                raise each
        return found


class Audit(TrainerCallback):
    """What the stream gave and what was trained on, by step, with weights and gradient. ``act`` is called at a step."""

    def __init__(self, trainer, monkeypatch, at=0, act=None):
        self.given, self.steps, self.updates, self._rows, self.at, self.act = [], [], [], [], at, act
        give, pack = trainer._worker._give, packing.TreeRow.pack
        monkeypatch.setattr(trainer._worker, "_give", lambda update: (self.given.append(update), give(update)))
        monkeypatch.setattr(packing.TreeRow, "pack", lambda row: (self._rows.extend(row.samples), pack(row))[1])
        self.worker = trainer._worker
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, *args, model=None, **settings):
        self.updates.append(({n: w.clone() for n, w in model.state_dict().items()}, tiny.gradient_of(model)))

    def on_step_end(self, args, state, control, **settings):
        self.steps.append(self._rows[:])
        self._rows.clear()
        if state.global_step == self.at:
            self.act(self.worker)

    @property
    def prompts(self):
        """The prompts of the groups of each step that ended."""
        return [[group.prompt.text for group in update.groups] for update in self.given[: len(self.steps)]]

    def check(self, bound):
        """Every row that was trained on is one of the update's, once, and no group is older than ``bound``."""
        for update, rows in zip(self.given, self.steps, strict=False):
            assert max(update.ages) <= bound
            own = [rollout.completion for group in update.groups for rollout in group.rollouts]
            assert Counter(row["input_ids"].tobytes() for row in rows) == Counter(
                (c.prompt_ids.tobytes() + c.ids.tobytes()) for c in own
            )
            for c in own:  # tokens are those of the text, which the reward function saw
                assert tiny.make_tokenizer().decode(c.ids, skip_special_tokens=True) == c.content


def test_without_age_it_is_plain_grpo_on_the_newest_policy(policy, tmp_path, monkeypatch, capsys):
    trainer = make(policy, tmp_path, max_staleness=0, max_steps=3, max_grad_norm=0.0)
    audit = Audit(trainer, monkeypatch)
    history = tiny.trained(trainer)[:3]
    assert "uniform: an update has 16 or more rollouts, in whole groups, and none" in capsys.readouterr().err
    audit.check(bound=0)
    assert Counter(chain(*audit.prompts)) == Counter(trainer.train_dataset["prompt"])  # one epoch, each once
    first, second = (
        [tuple(r.completion.ids.tolist()) for g in update.groups for r in g.rollouts] for update in audit.given[:2]
    )
    assert sum(map(tuple.__eq__, first, second)) < 4  # each batch has random numbers of its own
    for logged in history:  # the log-probabilities of the other process are those of the trainer's weights
        assert logged["ratio"] == pytest.approx(1, abs=1e-5) and logged["kl"] == pytest.approx(0, abs=1e-5)
        assert logged["sample/staleness_max"] == 0 and logged["allocation/rows"] == 16
    for update, (weights, gradient) in zip(audit.given, audit.updates, strict=True):
        rows = []
        for group in update.groups:
            r = torch.tensor(group.rewards)
            for rollout, advantage in zip(group.rollouts, ((r - r.mean()) / (r.std() + 1e-4)).tolist(), strict=True):
                own = rollout.completion
                assert own.scores == (tiny.mark(own.content, k_of(trainer, own.prompt)),)
                rows.append(tiny.Row(tuple(own.prompt_ids.tolist()), tuple(own.ids.tolist()), advantage))
        tiny.assert_gradient(gradient, tiny.direct_gradient(weights, rows, tiny.TERMS["dapo"]), 1e-3)


def k_of(trainer, prompt):
    return next(row["k"] for row in trainer.train_dataset if row["prompt"] == prompt)


def test_vip_by_price_with_faulty_rewards(policy, tmp_path, monkeypatch):
    faults = {"0": float("nan"), "5": None, "a": "seven", "g": TimeoutError("busy")}
    trainer = make(
        policy, tmp_path, 16, Faulty(faults), allocator=VIP(rollouts_per_prompt=4, high=8), estimator="rloo",
        failed_rewards="drop", max_steps=6,
    )  # fmt: skip
    audit = Audit(trainer, monkeypatch)
    history = tiny.trained(trainer)[:6]
    audit.check(bound=1)
    assert len(audit.steps) == 6 and sum(logged["allocation/failed"] for logged in history) > 0
    assert not any(c["input_ids"] is None for step in audit.steps for c in step)
    groups = [group for update in audit.given for group in update.groups]
    assert len({len(group.rollouts) for group in groups}) > 1
    for logged in history:
        assert abs(logged["allocation/carry"]) <= 4 * 32 and logged["allocation/age_max"] <= 1
        assert "sample/dropped_stale_total" not in logged and logged["sample/staleness_max"] <= 1
    assert not {rollout.completion.content[:1] for group in groups for rollout in group.rollouts} & set(faults)


def test_a_killed_run_resumes_without_losing_or_repeating_a_prompt(policy, tmp_path, monkeypatch):
    def run(act):
        trainer = make(
            policy, tmp_path, estimator="reinforce", baseline="spo", max_steps=9, save_strategy="steps", save_steps=3,
        )  # fmt: skip
        return trainer, Audit(trainer, monkeypatch, 5, act)

    killed, audit = run(lambda worker: os.kill(worker._process.pid, signal.SIGKILL))
    ends_with(killed, audit, StreamWorkerError, r"must run, got one that ended with exit code -9 while", seconds=300)
    pid, first = audit.worker._process.pid, audit.prompts[:3]
    assert len(audit.steps) in (5, 6)

    resumed, audit = run(lambda worker: None)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 9 and audit.worker._process.pid != pid
    audit.check(bound=1)
    assert [len(step) for step in audit.steps] == [16] * 6
    counts = Counter(chain(*first, *audit.prompts))
    assert set(counts.values()) == {3} and len(counts) == 12  # three epochs of twelve prompts
    assert resumed.allocation.baseline.predict(audit.worker.stream._prompts).std() > 0


def test_a_resumed_run_knows_its_failures_and_the_functions_that_have_returned(policy, tmp_path):
    """A function that has returned may raise in the first call of the process that samples: it ends no run."""
    faults, given = dict.fromkeys("0123"), {"failed_rewards": "drop", "estimator": "reinforce", "baseline": "spo"}
    given |= {"save_strategy": "steps", "save_steps": 1}
    make(policy, tmp_path, reward=Faulty(faults), max_steps=1, **given).train()
    resumed = make(policy, tmp_path, reward=Faulty(faults, first=TimeoutError("busy")), max_steps=2, **given)
    saved = load_state(tmp_path / "checkpoint-1" / FILE, KIND, remedy="", records=(StreamCompletion,))
    resumed._worker.load(tmp_path / "checkpoint-1" / FILE)
    assert resumed._worker.rewards.state_dict() == saved["failures"] and saved["failures"]["number"] > 0
    assert str(resumed.allocation.baseline.state_dict()) == str(restored(saved["stream"]["baseline"]))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2 and resumed._worker.groups > saved["groups"] > 0


def ends_with(trainer, audit, error, text, seconds=60):
    started = time.monotonic()
    with pytest.raises(error, match=text):
        trainer.train()
    assert time.monotonic() - started < seconds and not audit.worker._process.is_alive()
    assert not audit.worker._thread.is_alive() and not audit.worker.job.weights.parent.exists()


def test_a_process_that_is_stopped_is_named_in_bounded_time(policy, tmp_path, monkeypatch):
    trainer = make(policy, tmp_path, max_steps=50, heartbeat_stale_after_s=3.0)
    audit = Audit(trainer, monkeypatch, 1, lambda worker: os.kill(worker._process.pid, signal.SIGSTOP))
    text = r"the rollout worker \(process \d+\) must go on, got no sign of it for \d+ s while it was \w+"
    ends_with(trainer, audit, StreamWorkerError, text)


@pytest.mark.parametrize(
    ("reward", "error", "text"),
    [
        (Faulty(hangs=True), StreamWorkerError, "while it was calling the reward function faulty; mend what hangs"),
        (Faulty({"any": KeyError("gold")}), StreamWorkerError, "while it was calling the .* faulty: KeyError: 'gold'"),
        (Faulty(dict.fromkeys(tiny.CHARACTERS)), RewardsFailedError, "faulty returned None"),
    ],
    ids=["hangs", "raises", "gives none"],
)
def test_a_reward_function_that_does_not_work_ends_the_run_and_is_named(
    policy, tmp_path, monkeypatch, reward, error, text
):
    trainer = make(policy, tmp_path, reward=reward, max_steps=50, heartbeat_stale_after_s=3.0)
    ends_with(trainer, Audit(trainer, monkeypatch), error, text)


def test_a_short_update_is_filled_up_without_a_change_of_the_loss():
    rows = [
        {"completion_mask": np.array([0] * 3 + [1] * n), "input_ids": np.arange(3 + n), "advantage": 1.0, "group_id": 0}
        for n in (4, 2, 6)
    ]
    batches = [[row for of_rank in ranks for row in of_rank.samples] for ranks in micro_batches(rows, 2, 2)]
    assert [len(batch) for batch in batches] == [2, 2]
    weight = {}  # of a token in the loss: TRL takes the mean over a micro-batch, then over these
    for batch in batches:
        tokens = sum(int(row["completion_mask"].sum()) for row in batch)
        for row in batch:
            weight[len(row["input_ids"])] = weight.get(len(row["input_ids"]), 0.0) + row["advantage"] / tokens / 2
    assert weight == pytest.approx({7: 1 / 12, 5: 1 / 12, 9: 1 / 12})


def test_a_rank_gets_its_own_row_of_each_micro_batch(monkeypatch):
    """``test_ranks`` has how rank 0 hands out what it makes, and how a rank learns that it failed."""
    monkeypatch.setattr(Ranks, "broadcast", lambda ranks: {"input_ids": torch.tensor([[1, 2], [3, 4]])})
    second = SimpleNamespace(num_processes=2, process_index=1)
    batches = iter(_MicroBatches(SimpleNamespace(accelerator=second)))
    assert next(batches)["input_ids"].tolist() == [[3, 4]]


REFUSED = {
    "weight_sync_steps must be 1": {"weight_sync_steps": 2},
    "batch must say how many prompts inverse_accuracy": {"allocator": InverseAccuracy()},
    "got ar3po; use it with AllocatedGRPOTrainer": {"allocator": AR3PO(reuse="replay")},
    "got voting; use it with": {"allocator": Voting()},
    "verdict must be one of the reward functions, judge, got 'gold'": {"verdict": "gold"},
    "whole_groups must be left out of a stream, .* got True; ": {"whole_groups": True},
    "extract and rollout_log_text must be left out of a stream, .* got 'boxed', 'hashes'; ": {
        "extract": "boxed",
        "rollout_log_text": "hashes",
    },
    "verdict must name a reward function for hora": {"allocator": HORA(), "reward": [judge, tiny.mark]},
    "reward_funcs must be functions of a module": {"reward": lambda completions, **columns: [0.0]},
    "selection must give all prompts the same weight": {"selection": SPOWeights(importance_weights=True)},
    "got a IterableDataset without a length": {"dataset": tiny.make_questions().to_iterable_dataset()},
}


def test_what_cannot_work_is_refused_before_anything_is_sampled(policy, tmp_path):
    for message, given in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            make(policy, tmp_path, **given)


def test_the_script_of_the_page_trains(policy, tmp_path, monkeypatch, capsys):
    settings = "max_steps=2, use_cpu=True, bf16=False, report_to=[], max_completion_length=4, save_strategy='no'"
    block = tiny.page_script("stream.md", "AsyncGRPO", policy, f"{settings}, gradient_checkpointing=False")
    (tmp_path / "streamed_script.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("streamed_script").main()
    assert "vip: an update has 32 or more rollouts" in capsys.readouterr().err


def test_the_undocumented_names_of_the_trainer_exist(policy, tmp_path):
    trainer = make(policy, tmp_path)
    for name in (*seam.ASYNC_ATTRIBUTES, "_worker"):
        assert hasattr(trainer, name), name
    methods = vars(AllocatedAsyncGRPOTrainer) | vars(WholeCheckpoints)
    own = {name for name, value in methods.items() if inspect.isfunction(value)}
    overridden = {name for name in own if hasattr(AsyncGRPOTrainer, name) and not name.startswith("__")}
    assert overridden - {"train"} == set(seam.ASYNC_METHODS)
    for name, parameters in seam.ASYNC_METHODS.items():
        assert tuple(inspect.signature(getattr(AsyncGRPOTrainer, name)).parameters)[1:] == parameters
    protocols = vars(RolloutWorkerProtocol) | vars(WeightTransferProtocol)
    assert {name for name in protocols if not name.startswith("_")} <= set(dir(trainer._worker))
