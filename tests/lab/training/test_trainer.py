import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from apportion import AR3PO, DAPO, HORA, VIP, PilotCommit, ReinforceAda, Uniform
from apportion.baselines import SPO, Optimal, Predicted, Zero
from apportion.engines.saved_state import SavedStateError, load_state, save_state
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.training.learner import PolicyLearner
from apportion.lab.training.loss import training_rows
from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import KIND, Trainer
from apportion.predictors import DiscountedCounts, RunningVariance
from apportion.records import read_log, record_of_log
from apportion.selection import GRESO, Mixed, SPOWeights
from apportion.types import Group
from tests.hostile import FILES, MARKER
from tests.soak import case

ALLOCATORS = {
    "uniform": lambda: Uniform(rollouts_per_prompt=4),
    "vip": lambda: VIP(rollouts_per_prompt=4, high=12, predictor=DiscountedCounts()),
    "hora": lambda: HORA(pre_rollouts=2, rollouts_per_prompt=4, high=12),
    "ar3po": lambda: AR3PO(rollouts_per_stage=2, reuse="recompute"),
    "dapo": lambda: DAPO(rollouts_per_prompt=4, target=3, draw=4, max_draws=4),
    "pilot_commit": lambda: PilotCommit(pilots=2, commits=2, target=2, draw=4, max_rounds=4),
    "reinforce_ada": lambda: ReinforceAda(rollouts_per_round=2, keep=2, rounds=3),
    "optimal": lambda: Uniform(rollouts_per_prompt=4),
    "ppo": lambda: Uniform(rollouts_per_prompt=4),
    "mixed": lambda: VIP(rollouts_per_prompt=4, high=12),
    "spo": lambda: Uniform(rollouts_per_prompt=1),
    "batch_optimal": lambda: Uniform(rollouts_per_prompt=1),
    "greso": lambda: DAPO(rollouts_per_prompt=4, target=3, draw=4, max_draws=4),
    "stream": lambda: HORA(pre_rollouts=2, rollouts_per_prompt=4, high=12),
    "stream_singles": lambda: Uniform(rollouts_per_prompt=1),
}
CHANGES = {
    "optimal": {"estimator": "reinforce", "baseline": Optimal()},
    "ppo": {"estimator": "gae"},
    "mixed": {"selection": Mixed()},
    "spo": {"selection": SPOWeights(importance_weights=True), "estimator": "spo", "baseline": SPO()},
    "batch_optimal": {"estimator": "batch_optimal"},
    "greso": {"selection": GRESO()},
    "stream": {"age_bound": 2, "slots": 12, "selection": Mixed()},
    "stream_singles": {"age_bound": 1, "slots": 4, "estimator": "batch_optimal"},
}


def trainer(base, name, seed, directory):
    return Trainer(settings(base, **CHANGES.get(name, {})), ALLOCATORS[name](), seed, directory)


def settings(base, **changes):
    lengths = {"problems": 32, "prompts_per_step": 8, "rollouts": 32 * 10, "evaluate_every": 64, "checkpoint_every": 4}
    return Training(base=base, **(lengths | {"held_out": 40} | changes))


def curve(directory):
    """Return the metrics without their times."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "cpu_seconds"} for record in records]


def logged(directory):
    """Return the rollout log without its times."""
    return read_log(directory / "rollouts").drop_columns("written")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_base_folder):
    """Return the folder of a finished run with seed 0. Each run is trained once for all tests."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def finished(name):
        assert trainer(small_base_folder, name, 0, folder / name).run()
        return folder / name

    return finished


KEEPING = ("vip", "ar3po", "optimal", "ppo", "mixed", "spo", "stream")
"""Rules that keep something of each kind: beliefs, responses, a baseline, a critic, a selection."""
SOME = [case(name, suite=name in KEEPING) for name in sorted(ALLOCATORS)]


def test_a_stream_samples_by_the_policy_of_the_request_and_keeps_its_bound(tmp_path, small_base_folder):
    """Each rollout is answered with the version of the policy that sampled it."""
    run = trainer(small_base_folder, "stream", 0, tmp_path)
    slots, stream, versions = run.slots, run.slots.stream, []

    def versioned(prompts, counts, sampler=run.sampler):
        return [[replace(one, answer=str(stream.version)) for one in own] for own in sampler(prompts, counts)]

    def arrived(ticket, rollout, take=stream.arrived):
        versions.append((ticket.version, int(rollout.answer), stream.version))
        return take(ticket, rollout)

    slots._sampler, stream.arrived = versioned, arrived
    assert run.run()
    assert all(asked == sampled for asked, sampled, _ in versions)
    assert {now - sampled for _, sampled, now in versions} >= {0, 1}
    records = curve(tmp_path)[1:]
    assert max(record["largest_age"] for record in records) == 2
    assert all(sum(record["counts"]) >= 32 for record in records)


@pytest.mark.parametrize("name", [case(name, suite=name == "vip") for name in sorted(ALLOCATORS)])
def test_the_same_seed_gives_the_same_run(tmp_path, small_base_folder, whole, name):
    assert trainer(small_base_folder, name, 0, tmp_path).run()
    assert curve(whole(name)) == curve(tmp_path)


def test_another_seed_gives_another_run(tmp_path, small_base_folder, whole):
    assert trainer(small_base_folder, "vip", 1, tmp_path).run()
    assert curve(whole("vip")) != curve(tmp_path)


@pytest.mark.parametrize("name", SOME)
def test_a_run_that_was_told_to_stop_resumes_with_the_same_curve(tmp_path, small_base_folder, whole, name):
    stopped = trainer(small_base_folder, name, 0, tmp_path / "parts")
    assert not stopped.run(lambda record: record["step"] < 3)
    assert trainer(small_base_folder, name, 0, tmp_path / "parts").run()
    assert curve(tmp_path / "parts") == curve(whole(name))
    assert logged(tmp_path / "parts").equals(logged(whole(name)))


def test_a_run_killed_between_checkpoints_goes_back_to_the_last_one(tmp_path, small_base_folder, whole):
    """Metrics of steps after the checkpoint are replaced, and a half-written line is dropped."""

    class Killed(BaseException):
        pass

    def kill(record):
        if record["step"] == 7:
            raise Killed
        return True

    with pytest.raises(Killed):
        Trainer(settings(small_base_folder), ALLOCATORS["vip"](), 0, tmp_path / "killed").run(kill)
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 8, "rollo')
    Trainer(settings(small_base_folder), ALLOCATORS["vip"](), 0, tmp_path / "killed").run()
    assert curve(tmp_path / "killed") == curve(whole("vip"))
    assert logged(tmp_path / "killed").equals(logged(whole("vip")))


def test_the_log_of_a_run_has_the_rollouts_of_its_metrics(whole):
    records, record = curve(whole("hora")), record_of_log(whole("hora") / "rollouts")
    assert [(record.step == each["step"]).sum() for each in records[1:]] == [
        len(each["counts"]) for each in records[1:]
    ]
    assert record.asked.tolist() == [count for each in records[1:] for count in each["counts"]]
    assert record.tokens.sum() == records[-1]["tokens"] and record.binary
    assert all(text and " =" in text for text in record.texts)


def test_a_run_may_do_without_a_log_or_with_hashes(tmp_path, small_base_folder, whole):
    run = Trainer(settings(small_base_folder, rollout_log="none"), ALLOCATORS["uniform"](), 0, tmp_path / "none")
    assert not run.run(lambda record: record["step"] < 3)
    assert not (tmp_path / "none" / "rollouts").exists()
    Trainer(settings(small_base_folder, rollout_log="hashes"), ALLOCATORS["uniform"](), 0, tmp_path / "none").run()
    assert curve(tmp_path / "none") == curve(whole("uniform"))
    table = read_log(tmp_path / "none" / "rollouts")
    assert table["step"][0].as_py() == 4 and table["prompt"].null_count == len(table)
    with pytest.raises(ValueError, match="rollout_log must be one of full, hashes, none, got 'all'"):
        settings(small_base_folder, rollout_log="all")


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, small_base_folder, whole):
    shutil.copytree(whole("uniform"), tmp_path / "killed")
    (tmp_path / "killed" / "checkpoint.pt").unlink()
    Trainer(settings(small_base_folder), ALLOCATORS["uniform"](), 0, tmp_path / "killed").run()
    assert curve(tmp_path / "killed") == curve(whole("uniform"))
    assert logged(tmp_path / "killed").equals(logged(whole("uniform")))


def test_a_finished_run_is_not_repeated(small_base_folder, whole):
    before = (whole("uniform") / "metrics.jsonl").read_bytes()
    assert Trainer(settings(small_base_folder), ALLOCATORS["uniform"](), 0, whole("uniform")).run()
    assert (whole("uniform") / "metrics.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, small_base_folder):
    """Return the folder of an AR3PO run with a critic's state, stopped after three steps."""
    folder = tmp_path_factory.mktemp("stopped")
    run = Trainer(settings(small_base_folder, estimator="gae"), ALLOCATORS["ar3po"](), 0, folder)
    assert not run.run(lambda record: record["step"] < 3)
    return folder


@pytest.fixture
def damaged(tmp_path, small_base_folder, stopped):
    """Return a function that resumes a copy of the stopped run with ``change`` made, and returns the error's line."""
    folder = tmp_path / "vip-seed0"
    shutil.copytree(stopped, folder)

    def resume(change):
        change(folder / "checkpoint.pt")
        with pytest.raises(SavedStateError) as caught:
            Trainer(settings(small_base_folder, estimator="gae"), ALLOCATORS["ar3po"](), 0, folder)
        said = str(caught.value)
        assert said.startswith(f"{folder / 'checkpoint.pt'}: ") and "\n" not in said
        assert said.endswith(f"; delete {folder}, and the same command trains this run again from its start")
        return said

    return resume


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content[:-200], "must hold the 3 steps of the checkpoint beside it, got less"),
        (lambda content: content.replace(b"0.1", b"0.2", 1), "must hold what the run has written, got something else"),
    ],
)
def test_metrics_that_were_changed_since_the_checkpoint_are_refused(
    tmp_path, small_base_folder, stopped, change, problem
):
    folder = tmp_path / "vip-seed0"
    shutil.copytree(stopped, folder)
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(change(metrics.read_bytes()))
    with pytest.raises(ValueError, match=problem):
        Trainer(settings(small_base_folder, estimator="gae"), ALLOCATORS["ar3po"](), 0, folder)


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_checkpoint_is_refused_in_one_line_and_runs_no_code(tmp_path, damaged, name):
    damaged(lambda path: path.write_bytes(FILES[name](tmp_path / MARKER)))
    assert not (tmp_path / MARKER).exists()


def _set(*keys, value):
    """Return a function that changes one entry of a saved state."""

    def change(path):
        state = inner = load_state(path, KIND, remedy="", records=(LedgerCompletion,))
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value(inner[keys[-1]]) if callable(value) else value
        save_state(path, KIND, state)

    return change


WEIGHT = "model.embed_tokens.weight"
STEP = "steps"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set(STEP, value=-1), "steps must be a number of at least 0"),
        (_set(STEP, value=2.5), "steps must be a number of at least 0"),
        (_set("metrics_bytes", value=-1), "metrics_bytes must be a number of at least 0"),
        (_set("metrics_sha256", value=None), "metrics_sha256 must be"),
        (_set("sampler", "tokens", value=float("nan")), "tokens must be"),
        (_set("sampler", "generator", value=torch.zeros(3)), "generator must be the state"),
        (_set("sampler", "generator", value=None), "generator must be the state"),
        (_set("sampler", value=[]), "sampler must be values by name"),
        (_set("allocator", value={}), "must come from the allocator 'ar3po', got None"),
        (_set("allocator", "store", "step", value=-3), "step must be"),
        (_set("baseline", value={"baseline": "zero"}), "baseline must be None"),
        (_set("learner", "policy", WEIGHT, value=lambda saved: saved[:-1]), "must be a tensor"),
        (_set("learner", "policy", WEIGHT, value=lambda saved: saved.double()), "must be a tensor"),
        (_set("learner", "policy", WEIGHT, value=lambda saved: saved * float("nan")), "must be finite"),
        (_set("learner", "policy", value={}), "policy must be the"),
        (_set("learner", "optimizer", "param_groups", 0, "lr", value=9.0), "optimizer must be the settings"),
        (_set("learner", "optimizer", "state", 0, "exp_avg_sq", value=lambda saved: saved - 1), "at least 0"),
        (_set("learner", "optimizer", "state", 0, "exp_avg", value=torch.zeros(1)), "exp_avg of optimizer must be"),
        (_set("learner", "optimizer", "state", value={10**6: {}}), "optimizer must be moments"),
        (_set("learner", "critic_optimizer", value={"state": {}}), "critic_optimizer must be"),
    ],
)
def test_a_forged_checkpoint_is_refused_in_one_line(damaged, change, problem):
    assert problem in damaged(change)


def test_a_checkpoint_of_another_kind_is_refused(damaged):
    assert "got that of a 'TRL run'" in damaged(lambda path: save_state(path, "TRL run", {}))


def test_a_run_whose_damaged_folder_is_deleted_trains_again(tmp_path, small_base_folder, whole):
    shutil.copytree(whole("uniform"), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(SavedStateError):
        trainer(small_base_folder, "uniform", 0, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert trainer(small_base_folder, "uniform", 0, tmp_path / "run").run()
    assert curve(tmp_path / "run") == curve(whole("uniform"))


def test_each_epoch_visits_every_problem_once(tmp_path, small_base_folder):
    trainer = Trainer(settings(small_base_folder), ALLOCATORS["uniform"](), 0, tmp_path)
    seen = [[prompt.id for prompt in trainer._draw(8)] for _ in range(8)]
    for epoch in (seen[:4], seen[4:]):
        assert sorted(q for step in epoch for q in step) == sorted(prompt.id for prompt in trainer.prompts)
    assert seen[:4] != seen[4:]


def test_a_selection_shares_the_allocators_belief_and_is_logged(small_base_folder, whole):
    trained = trainer(small_base_folder, "mixed", 0, whole("mixed"))
    assert trained.selector._belief is trained.allocator.predictor
    last = curve(whole("mixed"))[-1]["selection"]
    assert last == trained.selector.metrics() and last["never_chosen"] < 1
    assert "selection" not in curve(whole("vip"))[-1]


@pytest.mark.parametrize("estimator", ["rloo", "gae"])
def test_importance_weights_scale_what_a_prompt_adds_to_the_gradient(small_base, small_base_folder, estimator):
    """A weight of 0 leaves a prompt out of the loss, and a common factor changes every row alike."""
    learner = PolicyLearner(small_base, settings(small_base_folder, estimator=estimator), None)
    prompts = trainer_prompts(small_base_folder)[:3]
    drawn = LedgerSampler(small_base, 0)(prompts, [6, 6, 6])
    groups = [Group(prompt, tuple(rollouts)) for prompt, rollouts in zip(prompts, drawn, strict=True)]
    if estimator == "gae":
        rows = [learner._actor_critic_rows(groups, weights) for weights in (None, np.array([2.0, 0.0, 2.0]))]
    else:
        rows = [training_rows(groups, "rloo", importance=weights) for weights in (None, np.array([2.0, 0.0, 2.0]))]
    plain, weighted = ([row.weight for row in each] for each in rows)
    assert weighted == [
        weight * factor for weight, factor in zip(plain, [2.0] * 6 + [0.0] * 6 + [2.0] * 6, strict=True)
    ]


def trainer_prompts(base):
    return pool_of(settings(base), 0).prompts


def test_fresh_prompts_are_not_in_the_batch_already(tmp_path, small_base_folder):
    trainer = Trainer(settings(small_base_folder), ALLOCATORS["uniform"](), 0, tmp_path)
    trainer._draw(20)
    first = trainer._draw(8)
    fresh = trainer._source(first)
    ids = [prompt.id for prompt in (*first, *fresh(10), *fresh(14))]
    assert len(set(ids)) == 32
    with pytest.raises(ValueError, match="a batch needs 33 distinct prompts, the data set holds 32"):
        fresh(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        "rloo",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("reinforce_plus_plus", "dr_grpo", "grpo", "maxrl", "sft", "gae")
        ),
    ],
)
def test_the_policy_learns(tmp_path, small_base_folder, estimator):
    """Sixty updates raise the exact success on held-out problems."""
    lengths = {"problems": 256, "prompts_per_step": 16, "rollouts": 128 * 60, "evaluate_every": 3840, "held_out": 200}
    training = settings(small_base_folder, estimator=estimator, learning_rate=3e-4, **lengths)
    Trainer(training, Uniform(rollouts_per_prompt=8), 0, tmp_path).run()
    success = [record["success"] for record in curve(tmp_path) if "success" in record]
    assert success[-1] > success[0] + 0.04


def test_graded_rewards_train(tmp_path, small_base_folder):
    allocator = VIP(rollouts_per_prompt=4, high=12, predictor=RunningVariance())
    training = settings(small_base_folder, reward="share", rollouts=32 * 12)
    training.check(allocator)
    Trainer(training, allocator, 0, tmp_path).run()
    *_, last = curve(tmp_path)
    assert 0 < last["train_reward"] < 1
    assert len(set(last["counts"])) > 1
    baseline = replace(training, estimator="reinforce", baseline=Predicted(DiscountedCounts()))
    with pytest.raises(ValueError, match="reward must be 'exact' for the baseline predicted"):
        baseline.check(Uniform(rollouts_per_prompt=1))


def test_a_run_may_be_as_long_as_its_tokens(tmp_path, small_base_folder):
    trainer = Trainer(settings(small_base_folder, tokens=900, rollouts=None), ALLOCATORS["uniform"](), 0, tmp_path)
    assert trainer.run()
    *_, before, last = curve(tmp_path)
    assert before["tokens"] < 900 <= last["tokens"]


def test_a_run_may_be_as_long_as_its_steps(tmp_path, small_base_folder):
    """Allocators take equal steps and may take different rollouts. Evaluations also count steps."""
    for name in ("uniform", "reinforce_ada"):
        training = settings(small_base_folder, steps=3, rollouts=None, evaluate_every=2)
        assert (training.unit, training.length) == ("step", 3)
        assert Trainer(training, ALLOCATORS[name](), 0, tmp_path / name).run()
        assert [record["step"] for record in curve(tmp_path / name)] == [0, 1, 2, 3]
        assert [record["step"] for record in curve(tmp_path / name) if "success" in record] == [0, 2, 3]
    assert curve(tmp_path / "uniform")[-1]["rollouts"] == 96 != curve(tmp_path / "reinforce_ada")[-1]["rollouts"]


def test_the_unit_of_a_length_is_a_key_of_every_record(tmp_path, small_base_folder):
    lengths = {
        "rollouts": {"rollouts": 40},
        "tokens": {"tokens": 200, "rollouts": None},
        "step": {"steps": 2, "rollouts": None},
    }
    for unit, changes in lengths.items():
        training = settings(small_base_folder, **changes)
        Trainer(training, ALLOCATORS["uniform"](), 0, tmp_path / unit).run()
        *_, before, last = (record[unit] for record in curve(tmp_path / unit))
        assert training.unit == unit and before < training.length <= last


def test_the_baseline_of_the_settings_stays_as_it_was(tmp_path, small_base_folder):
    """Two runs of one Training object must not learn from each other."""
    training = settings(small_base_folder, estimator="reinforce", baseline=Optimal())
    for place in ("one", "two"):
        Trainer(training, ALLOCATORS["uniform"](), 0, tmp_path / place).run()
    assert curve(tmp_path / "one") == curve(tmp_path / "two")


def test_reused_responses_are_told_apart_in_the_metrics(tmp_path, small_base_folder):
    """Direct replay has the old probabilities. A recomputed response has an importance ratio of 1."""
    ratios = {}
    for reuse in ("replay", "recompute"):
        allocator = AR3PO(rollouts_per_stage=2, reuse=reuse)
        training = settings(small_base_folder, problems=8, rollouts=32 * 8 * 4, learning_rate=2e-3)
        Trainer(training, allocator, 0, tmp_path / reuse).run()
        found = [record["reused_ratio_variance"] for record in curve(tmp_path / reuse) if "reused_ratio" in record]
        assert found
        ratios[reuse] = max(found)
    assert ratios["recompute"] < 1e-9 < ratios["replay"]


def test_a_step_without_information_changes_nothing(tmp_path, small_base_folder):
    trainer = Trainer(settings(small_base_folder), Uniform(rollouts_per_prompt=1), 0, tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    trainer._step()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollouts": 0}, "rollouts must be at least 1, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, got nan"),
        ({"estimator": "ppo"}, "estimator must be one of grpo, dr_grpo, rloo,.* gae, .* got 'ppo'"),
        ({"weighting": "word"}, "weighting of prompt, rollout, token, got 'rloo' and 'word'"),
        ({"estimator": "reinforce"}, "a baseline goes with the estimators 'reinforce' and 'spo', got None"),
        ({"baseline": Zero()}, r"a baseline goes with the estimators 'reinforce' and 'spo', got Zero\(\) with 'rloo'"),
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"trace": 1.5}, "discount and trace must be between 0 and 1, got 1.0 and 1.5"),
        ({"kl": -0.1}, "kl must be at least 0, got -0.1"),
        ({"problems": 4}, "prompts_per_step must be at most problems, got 8 of 4"),
        ({"held_out": 2000}, "held_out must be between 1 and 1000, got 2000"),
        ({"base": "mediun"}, "base must be easy, medium, hard, forks, or a folder"),
    ],
)
def test_wrong_settings_are_refused_at_construction(small_base_folder, changes, message):
    keep = {"base": small_base_folder, "problems": 32, "prompts_per_step": 8} | changes
    with pytest.raises(ValueError, match=message):
        Training(**keep)
