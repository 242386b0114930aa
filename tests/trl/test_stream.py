"""TRL's asynchronous trainer with an allocator: what it trains on, what a checkpoint keeps, and how a run ends.

TRL's own loop samples at a small server, or at vLLM where it is installed (``make vllm``).
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

pytest.importorskip("trl.experimental.async_grpo.packing", reason="an early version of TRL")

from trl.experimental.async_grpo import AsyncGRPOTrainer, packing
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, RolloutGroup, _AsyncRolloutLoop

from apportion import AR3PO, HORA, VIP, InverseAccuracy, Uniform
from apportion.allocators import Voting
from apportion.engines.saved_state import load_state
from apportion.scheduler.plain import restored
from apportion.selection import SPOWeights
from apportion.trl import AllocatedAsyncGRPOTrainer, seam
from apportion.trl.checkpoints import FILE, WholeCheckpoints
from apportion.trl.failures import RewardsFailedError
from apportion.trl.ranks import Ranks
from apportion.trl.stream import _MicroBatches, micro_batches
from apportion.trl.stream_loop import StreamLoop, merged
from apportion.trl.stream_worker import KIND, RECORDS, StreamWorker, StreamWorkerError
from tests.trl import completions, tiny
from tests.trl.scripts import streamed
from tests.trl.scripts.streamed import RESUMED, judge, make, mark, text_of, without_gpu

pytestmark = pytest.mark.xdist_group("stream")  # one server for all of them
scripted = pytest.mark.skipif(completions.HAS_VLLM, reason="the small server says what the test wants")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    without_gpu(monkeypatch.setattr)
    streamed.preloaded(monkeypatch.setattr)


@pytest.fixture(scope="session")
def chat(tmp_path_factory):
    """The folder of a policy that chats."""
    folder = tmp_path_factory.mktemp("chat")
    streamed.save_policy(folder)
    return str(folder)


@pytest.fixture(scope="session")
def server(chat, tmp_path_factory):
    with completions.started(chat, tmp_path_factory.mktemp("server") / "log.txt") as found:
        yield found


@pytest.fixture
def made(chat, server, tmp_path):
    """Return a function that makes a trainer at the common server."""
    return lambda **given: make(chat, server.url, tmp_path, **given)


@pytest.fixture
def run(made, monkeypatch):
    """Return a function that trains, and gives the trainer, its audit, and what each step logged."""

    def trained(**given):
        trainer = made(**given)
        audit = Audit(trainer, monkeypatch)
        return trainer, audit, tiny.trained(trainer)[: trainer.args.max_steps]

    return trained


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
        found = [self.faults.get(text_of(each)[:1], mark(each, own)) for each, own in zip(completions, k, strict=True)]
        first, self.first = self.first, None
        for each in (first, self.faults.get("any"), *found):
            if isinstance(each, Exception):
                raise each
        return found


class Audit(TrainerCallback):
    """What the stream gave and what was trained on, by step. ``act`` is called at a step."""

    def __init__(self, trainer, monkeypatch, at=0, act=None):
        self.given, self.steps, self._rows, self.at, self.act = [], [], [], at, act
        self.worker, pack = trainer.rollout_worker, packing.TreeRow.pack
        monkeypatch.setattr(packing.TreeRow, "pack", lambda row: (self._rows.extend(row.samples), pack(row))[1])
        if isinstance(self.worker, StreamWorker):
            give = self.worker._give
            monkeypatch.setattr(self.worker, "_give", lambda update: (self.given.append(update), give(update)))
        trainer.add_callback(self)

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
            own = [row for group in update.groups for rollout in group.rollouts for row in rollout.completion.rows]
            assert Counter(row["input_ids"].tobytes() for row in rows) == Counter(r.input_ids.tobytes() for r in own)
            assert [len(rollouts) for rollouts in update.batch.rollouts] == [*update.batch.asked]  # counts are the plan
            for row in own:  # what the reward function saw are the tokens that are trained on
                assert row.metrics["rewards/judge"] == mark(row.completion, k_of(row.prompt))


def k_of(prompt):
    return 12 * (int(text_of(prompt)[:3]) % 8)


def rows_of(step):
    """Return the tokens, log-probabilities and advantages of the rows of a step, in order of the tokens."""
    found = [
        (row["input_ids"].tolist(), row["completion_mask"].tolist(), row["old_log_probs"].tolist(), row["advantage"])
        for row in step
    ]
    return sorted(found)


@scripted
def test_uniform_trains_on_the_rows_and_advantages_of_trl(chat, tmp_path, monkeypatch):
    """Each from a server of its own, which gives a prompt the same completions in the same order."""
    steps, weights, metrics = [], [], []
    for stock in (True, False):
        with completions.started(chat, tmp_path / "log.txt") as server:
            settings = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 16, "max_steps": 1}
            trainer = make(chat, server.url, tmp_path / str(stock), 4, stock=stock, max_staleness=0, **settings)
            with monkeypatch.context() as within:
                audit = Audit(trainer, within)
                metrics.append(tiny.trained(trainer)[0])
        steps.append(rows_of(audit.steps[0][:16]))  # TRL fetches a micro-batch before the one before it is trained on
        weights.append([value for name, value in sorted(trainer.model.named_parameters()) if "lora" in name])
    assert len(steps[0]) == 16 and len({row[3] for row in steps[0]}) > 2
    for of_trl, own in zip(*steps, strict=True):
        assert of_trl[:2] == own[:2] and of_trl[2] == pytest.approx(own[2], abs=1e-6)
        assert of_trl[3] == pytest.approx(own[3], abs=1e-6)
    for of_trl, own in zip(*weights, strict=True):
        assert of_trl.abs().max() > 0 and torch.allclose(of_trl, own, atol=1e-6)
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], abs=1e-6) and metrics[0]["grad_norm"] > 0


def test_without_age_all_is_sampled_by_the_newest_adapter(run, server):
    before = Counter(completions.asked(server.url))
    _, audit, history = run(max_staleness=0, max_steps=3)
    audit.check(bound=0)
    assert Counter(chain(*audit.prompts)).keys() == {
        text_of(prompt) for prompt in streamed.make_questions(12)["prompt"]
    }
    for logged in history:  # the log-probabilities of the server are those of the trainer's weights
        assert logged["ratio"] == pytest.approx(1, abs=1e-3) and logged["kl"] == pytest.approx(0, abs=1e-5)
        assert logged["sample/staleness_max"] == 0 and logged["allocation/rows"] == 16
        assert logged["rollout/generated_tok_s"] > 0
    if not completions.HAS_VLLM:  # what was requested was sampled, once, and no more than an update ahead
        asked = Counter(completions.asked(server.url)) - before
        assert len(asked) == 12 and min(asked.values()) == 4 and sum(asked.values()) <= 64


def test_vip_by_price_with_faulty_rewards(run):
    faults = dict.fromkeys("0123456789", float("nan")) | dict.fromkeys("abcdef") | dict.fromkeys("ABCDEF", "seven")
    faults["g"] = TimeoutError("busy")
    _, audit, history = run(
        questions=16, reward=Faulty(faults), allocator=VIP(rollouts_per_prompt=4, high=8), estimator="rloo",
        failed_rewards="drop", max_steps=6,
    )  # fmt: skip
    groups = [group for update in audit.given for group in update.groups]
    assert len(audit.steps) == 6 and len({len(group.rollouts) for group in groups}) > 1
    for logged in history:
        assert abs(logged["allocation/carry"]) <= 4 * 32 and logged["allocation/age_max"] <= 1
        assert "sample/dropped_stale_total" not in logged and logged["sample/staleness_max"] <= 1
    said = {text_of(row.completion)[:1] for g in groups for rollout in g.rollouts for row in rollout.completion.rows}
    assert not said & set(faults)


def test_a_second_round_knows_the_rewards_of_the_first(run):
    _, audit, _ = run(allocator=HORA(pre_rollouts=2, rollouts_per_prompt=6, high=12), batch=4, estimator="rloo")
    audit.check(bound=1)
    assert len({int(count) for update in audit.given for count in update.batch.asked}) > 1
    assert {rollout.round for update in audit.given for own in update.batch.rollouts for rollout in own} == {0, 1}


def test_single_rollouts_train_against_a_baseline(run):
    _, audit, history = run(questions=48, allocator=Uniform(1), estimator="reinforce", baseline="spo")
    assert all(len(group.rollouts) == 1 for update in audit.given for group in update.groups)
    assert all(logged["grad_norm"] > 0 for logged in history)
    for update in audit.given:
        assert update.advantages == pytest.approx(
            [group.rewards[0] - baseline for group, baseline in zip(update.groups, update.baselines, strict=True)]
        )


def double(number: int) -> int:
    """Double a number.

    Args:
        number: what is doubled.

    Returns:
        Twice the number.
    """
    return 2 * number


@scripted
def test_a_tool_is_called_and_its_output_not_trained_on(run):
    questions = [{"prompt": [{"role": "user", "content": f"tool {i}"}], "k": 40} for i in range(8)]
    given = {"dataset": Dataset.from_list(questions), "tools": [double], "max_steps": 1, "reward": eights}
    trainer, audit, (logged,) = run(**given)
    assert logged["tools/call_frequency"] == 1 and logged["reward"] == 1
    for row in audit.steps[0]:
        ids, trained = row["input_ids"], row["completion_mask"].astype(bool)
        text, own = (trainer.processing_class.decode(part) for part in (ids, ids[trained]))
        assert completions.CALL in text and "<tool_response>" in text and own and "<tool_response>" not in own


def eights(completions, **columns):
    """Whether the tool gave 8."""
    return [float(any(m["role"] == "tool" and m["content"] == "8" for m in each)) for each in completions]


class Room:
    """An environment that gives the task and the reward."""

    def reset(self, **row):
        self.k = row["k"]
        return f" of {self.k}"

    def get_reward(self):
        return float(self.k > 40)


def test_an_environment_gives_the_task_and_the_reward(run):
    _, audit, (logged, _) = run(reward=None, environment_factory=Room, max_steps=2)
    assert 0 <= logged["rewards/Room"] <= 1
    for update in audit.given:
        for group in update.groups:
            assert set(group.rewards) == {float(12 * (int(group.prompt.text[:3]) % 8) > 40)}
            for rollout in group.rollouts:
                assert " of " in text_of(rollout.completion.rows[0].prompt)


def test_groups_are_merged_list_by_list():
    one, two = (
        RolloutGroup(
            [i], {"k": [i]}, [[{"content": str(i)}]], [[i]], [[i, -i]], [0], [0], 0, i, env_rewards=[(int, 1.0)],
            rollout_rewards=[None],
        )
        for i in (1, 2)
    )  # fmt: skip
    both = merged([one, two])
    assert (
        both.prompts == [1, 2]
        and both.reward_kwargs == {"k": [1, 2]}
        and both.completions_sequences == [[1, -1], [2, -2]]
    )
    assert both.env_rewards == [(int, 1.0)] * 2 and both.rollout_rewards == [None, None] and one.prompts == [1]


def ends_with(trainer, audit, error, text, seconds=60):
    started, worker = time.monotonic(), audit.worker
    with pytest.raises(error, match=text):
        trainer.train()
    assert time.monotonic() - started < seconds and worker._process is None and not worker._thread.is_alive()


def assert_resumes(resumed, first, monkeypatch, checkpoint=True):
    """With the steps before, which had ``first``, every prompt was trained on in each of three epochs."""
    audit = Audit(resumed, monkeypatch)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == 9 and [len(step) for step in audit.steps] == [16] * 6
    audit.check(bound=1)
    counts = Counter(chain(*first, *audit.prompts))
    assert set(counts.values()) == {3} and len(counts) == 12


def test_a_run_whose_process_is_killed_resumes_without_losing_or_repeating_a_prompt(made, tmp_path, monkeypatch):
    killed = made(**RESUMED)
    audit = Audit(killed, monkeypatch, 5, lambda worker: os.kill(worker._process.pid, signal.SIGKILL))
    ends_with(killed, audit, StreamWorkerError, r"must run, got one that ended with exit code -9: it", seconds=300)
    resumed = made(**RESUMED)
    assert_resumes(resumed, audit.prompts[:3], monkeypatch, str(tmp_path / "checkpoint-3"))
    assert resumed.allocation.baseline.predict(resumed.rollout_worker.stream._prompts).std() > 0


def test_a_killed_trainer_takes_its_process_along_and_resumes(chat, server, tmp_path, monkeypatch):
    command = [sys.executable, "-m", "tests.trl.scripts.streamed", chat, server.url, str(tmp_path), "5"]
    assert subprocess.run(command, timeout=600).returncode == -signal.SIGKILL
    found = json.loads((tmp_path / "prompts.json").read_text())
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{found['child']}") and time.monotonic() < until:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{found['child']}")
    assert_resumes(make(chat, server.url, tmp_path, **RESUMED), found["prompts"][:3], monkeypatch)


def test_a_killed_server_is_named_and_another_one_goes_on(chat, tmp_path, monkeypatch):
    with completions.started(chat, tmp_path / "log.txt") as server:
        trainer = make(chat, server.url, tmp_path, heartbeat_stale_after_s=5.0, **RESUMED)
        audit = Audit(trainer, monkeypatch, 4, lambda worker: server.kill())
        text = rf"the vLLM server at {server.url} must answer, got nothing for \d+ s; start it again|Connection refused"
        ends_with(trainer, audit, Exception, text, seconds=300)
    with completions.started(chat, tmp_path / "log.txt", server.port):
        resumed = make(chat, server.url, tmp_path, **RESUMED)
        assert_resumes(resumed, audit.prompts[:3], monkeypatch, str(tmp_path / "checkpoint-3"))


def test_a_resumed_run_knows_its_failures_and_the_functions_that_have_returned(made, tmp_path):
    """A function that has returned may raise in the first call of the process that samples: it ends no run."""
    faults, given = dict.fromkeys("0123"), {"failed_rewards": "drop", "estimator": "reinforce", "baseline": "spo"}
    given |= {"save_strategy": "steps", "save_steps": 1}
    made(reward=Faulty(faults | dict.fromkeys(streamed.CHARACTERS[:40])), max_steps=1, **given).train()
    resumed = made(reward=Faulty(faults, first=TimeoutError("busy")), max_steps=2, **given)
    saved = load_state(tmp_path / "checkpoint-1" / FILE, KIND, remedy="", records=RECORDS)
    resumed.rollout_worker.load(tmp_path / "checkpoint-1" / FILE)
    assert resumed.rollout_worker.rewards.state_dict() == saved["failures"] and saved["failures"]["number"] > 0
    assert str(resumed.allocation.baseline.state_dict()) == str(restored(saved["stream"]["baseline"]))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2 and resumed.rollout_worker.groups > saved["groups"] > 0


def test_a_process_that_is_stopped_is_named_in_bounded_time(made, monkeypatch):
    trainer = made(max_steps=50, heartbeat_stale_after_s=8.0)
    audit = Audit(trainer, monkeypatch, 1, lambda worker: os.kill(worker._process.pid, signal.SIGSTOP))
    ends_with(trainer, audit, RuntimeError, r"worker heartbeat stale: \d+s > 8s; child is hung", seconds=120)


@pytest.mark.parametrize(
    ("reward", "error", "text"),
    [
        (Faulty(hangs=True), StreamWorkerError, "must return, got nothing from faulty for .* mend the one that hangs"),
        (Faulty({"any": KeyError("gold")}), RuntimeError, "worker child has failed; see chained exception"),
        (Faulty(dict.fromkeys(streamed.CHARACTERS)), RewardsFailedError, "faulty returned None"),
    ],
    ids=["hangs", "raises", "gives none"],
)
def test_a_reward_function_that_does_not_work_ends_the_run_and_is_named(made, monkeypatch, reward, error, text):
    trainer = made(reward=reward, max_steps=50, heartbeat_stale_after_s=8.0)
    ends_with(trainer, Audit(trainer, monkeypatch), error, text, seconds=120)


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
    "verdict must name a reward function for hora": {"allocator": HORA(), "reward": [judge, mark]},
    "prompts must be messages": {"dataset": Dataset.from_list([{"prompt": "2 + 2", "k": 1}])},
    "selection must give all prompts the same weight": {"selection": SPOWeights(importance_weights=True)},
    "got a IterableDataset without a length": {"dataset": streamed.make_questions(12).to_iterable_dataset()},
}


def test_what_cannot_work_is_refused_before_anything_is_sampled(chat, tmp_path):
    for message, given in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            make(chat, "http://127.0.0.1:9", tmp_path, **given)


def test_the_script_of_the_page_trains(chat, server, tmp_path, monkeypatch, capsys):
    settings = "max_steps=2, use_cpu=True, bf16=False, report_to=[], max_completion_length=4, save_strategy='no'"
    settings += f", gradient_checkpointing=False, vllm_server_base_url={server.url!r}"
    block = tiny.page_script("stream.md", "AsyncGRPO", chat, settings)
    adapter = "peft_config=__import__('peft').LoraConfig(r=4, target_modules=['q_proj'])"  # full weights need NCCL
    (tmp_path / "streamed_script.py").write_text(block.replace("allocator=VIP(),", f"allocator=VIP(), {adapter},"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    importlib.import_module("streamed_script").main()
    assert "vip: an update has 32 or more rollouts" in capsys.readouterr().err


def test_the_undocumented_names_of_the_trainer_and_its_loop_exist(made):
    trainer = made()
    for name in seam.ASYNC_ATTRIBUTES:
        assert hasattr(trainer, name), name
    assert {"_loop_kwargs", "_mp_ctx", "_process", "_failed_event"} <= set(vars(trainer.rollout_worker))
    for ours, of_trl, known in (
        ((AllocatedAsyncGRPOTrainer, WholeCheckpoints), AsyncGRPOTrainer, seam.ASYNC_METHODS),
        ((StreamWorker,), AsyncRolloutWorker, seam.ASYNC_WORKER_METHODS),
        ((StreamLoop,), _AsyncRolloutLoop, seam.ASYNC_LOOP_METHODS),
    ):
        own = {name for each in ours for name, value in vars(each).items() if inspect.isfunction(value)}
        overridden = {name for name in own if hasattr(of_trl, name) and not name.startswith("__")}
        assert overridden - {"train"} == set(known)
        for name, parameters in known.items():
            assert tuple(inspect.signature(getattr(of_trl, name)).parameters)[1:] == parameters
