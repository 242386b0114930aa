import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from apportion import AR3PO, HORA, VIP, Uniform
from apportion.allocators import OptPO
from apportion.baselines import SPO, Optimal, Predicted, Zero
from apportion.diagnosis.phantoms import phantoms_of
from apportion.engines.saved_state import load_state, save_state
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.training.learner import PolicyLearner
from apportion.lab.training.loss import training_rows
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import KIND, Trainer
from apportion.predictors import DiscountedCounts, RunningVariance
from apportion.records import read_log, record_of_log
from apportion.selection import Mixed, SPOWeights
from apportion.types import Group
from tests.cases import assert_refused, lines, refuse_lines, settings_of
from tests.damaged_states import equal
from tests.hostile import FILES, MARKER
from tests.lab.states import Killed, curve

UNIFORM = Uniform(rollouts_per_prompt=4)
SINGLE = Uniform(rollouts_per_prompt=1)
HITS = HORA(pre_rollouts=2, rollouts_per_prompt=4, high=12)
RULES = {
    "uniform": lambda: (UNIFORM, {}),
    "vip": lambda: (VIP(rollouts_per_prompt=4, high=12, predictor=DiscountedCounts()), {}),
    "ar3po": lambda: (AR3PO(rollouts_per_stage=2, reuse="recompute"), {}),
    "mixed": lambda: (VIP(rollouts_per_prompt=4, high=12), {"selection": Mixed()}),
    "spo": lambda: (SINGLE, {"selection": SPOWeights(importance_weights=True), "estimator": "spo", "baseline": SPO()}),
    "stream": lambda: (HITS, {"age_bound": 2, "slots": 12, "selection": Mixed()}),
    "optpo": lambda: (
        OptPO(min_samples=4, max_samples=8, exceedances=1),
        {"labels": "none", "estimator": "gae", "critic_updates": 1, "reset_every": 4, "problems": 64},
    ),
}
"""A rule and what its run sets. Each run has objects of its own where they learn."""
KEEPING = ("vip", "ar3po", "spo", "stream", "optpo")
"""Rules that keep something of each kind: beliefs, responses, a baseline, a selection, rollouts in flight, a critic.

OptPO has no labels, and its policy is reset at the step after the checkpoint.
"""


def settings(base, **changes):
    lengths = {"problems": 16, "prompts_per_step": 8, "steps": 6, "held_out": 10}
    return Training(base=base, **(lengths | {"evaluate_every": 3, "checkpoint_every": 4} | changes))


def trainer(base, name, directory, **changes):
    rule, own = RULES[name]()
    return Trainer(settings(base, **(own | changes)), rule, 0, directory)


def logged(directory):
    """Return the rollout log without its times."""
    return read_log(directory / "rollouts").drop_columns("written")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_base_folder):
    """Return the folder and the trainer of a finished run. Each run is trained once for all tests."""

    @cache
    def finished(name):
        folder = tmp_path_factory.mktemp(name)
        run = trainer(small_base_folder, name, folder)
        assert run.run()
        return folder, run

    return finished


def test_a_stream_samples_by_the_policy_of_the_request_and_keeps_its_bound(tmp_path, small_base_folder):
    """Each rollout is answered with the version of the policy that sampled it."""
    run = trainer(small_base_folder, "stream", tmp_path)
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


@pytest.mark.parametrize("name", KEEPING)
def test_a_run_that_is_stopped_and_then_killed_resumes_with_the_same_curve(tmp_path, small_base_folder, whole, name):
    """Metrics of steps after the checkpoint are replaced, and a half-written line is dropped."""

    def kill(record):
        if record["step"] == 5:
            raise Killed
        return True

    folder = tmp_path / "parts"
    assert not trainer(small_base_folder, name, folder).run(lambda record: record["step"] < 3)
    with pytest.raises(Killed):
        trainer(small_base_folder, name, folder).run(kill)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "rollo')
    resumed, (undisturbed, run) = trainer(small_base_folder, name, folder), whole(name)
    assert resumed.steps == 4 and resumed.run()
    assert curve(folder) == curve(undisturbed)
    assert equal(resumed.learner.state_dict(), run.learner.state_dict())
    assert logged(folder).equals(logged(undisturbed))


def test_the_log_of_a_run_has_the_rollouts_of_its_metrics(whole):
    records, record = curve(whole("vip")[0])[1:], record_of_log(whole("vip")[0] / "rollouts")
    assert [(record.step == each["step"]).sum() for each in records] == [len(each["counts"]) for each in records]
    assert record.asked.tolist() == [count for each in records for count in each["counts"]]
    assert record.tokens.sum() == records[-1]["tokens"] and record.binary
    assert all(text and " =" in text for text in record.texts)


def test_a_run_may_do_without_a_log_or_with_hashes(tmp_path, small_base_folder, whole):
    without = trainer(small_base_folder, "vip", tmp_path, rollout_log="none")
    assert not without.run(lambda record: record["step"] < 3)
    assert not (tmp_path / "rollouts").exists()
    trainer(small_base_folder, "vip", tmp_path, rollout_log="hashes").run()
    assert curve(tmp_path) == curve(whole("vip")[0])
    table = read_log(tmp_path / "rollouts")
    assert table["step"][0].as_py() == 4 and table["prompt"].null_count == len(table)
    assert not any(row["truncated"] is None for row in table.to_pylist() if row["index"] is not None)


def test_a_finished_run_is_not_repeated_and_one_without_a_checkpoint_starts_again(tmp_path, small_base_folder, whole):
    folder, finished = tmp_path / "run", whole("vip")[0]
    shutil.copytree(finished, folder)
    before = (folder / "metrics.jsonl").read_bytes()
    assert trainer(small_base_folder, "vip", folder).run()
    assert (folder / "metrics.jsonl").read_bytes() == before
    (folder / "checkpoint.pt").unlink()
    assert trainer(small_base_folder, "vip", folder).run()
    assert curve(folder) == curve(finished) and logged(folder).equals(logged(finished))


@pytest.fixture
def resume(tmp_path, small_base_folder):
    """Return a function that resumes an AR3PO run with a critic. Its checkpoint is of three steps, then changed."""
    folder = tmp_path / "vip-seed0"
    path = folder / "checkpoint.pt"
    kept = trainer(small_base_folder, "ar3po", folder, estimator="gae", critic_updates=1)
    assert not kept.run(lambda record: record["step"] < 3)
    content = path.read_bytes()

    def changed(change):
        path.write_bytes(content)
        change(path)
        trainer(small_base_folder, "ar3po", folder, estimator="gae", critic_updates=1)

    return changed


def test_metrics_that_were_changed_since_the_checkpoint_are_refused(resume):
    def change(path):
        metrics = path.with_name("metrics.jsonl")
        metrics.write_bytes(metrics.read_bytes().replace(b"0.1", b"0.2", 1))

    problem = "must hold what the run has written, got something else"
    assert_refused(resume, [(problem, change), (problem, _set("metrics_sha256", value=None))])


def _set(*keys, value):
    """Return a function that changes one entry of a saved state."""

    def change(path):
        state = inner = load_state(path, KIND, remedy="", records=(LedgerCompletion,))
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value(inner[keys[-1]]) if callable(value) else value
        save_state(path, KIND, state)

    return change


FORGED = """
    steps = -1                    => steps must be a number of at least 0
    steps = 2.5                   => steps must be a number of at least 0
    metrics_bytes = -1            => metrics_bytes must be a number of at least 0
    log = 3                       => log must be text or None
    sampler.tokens = nan          => tokens must be
    sampler = []                  => sampler must be values by name
    allocator = {}                => must come from the allocator 'ar3po', got None
    allocator.store.step = -3     => step must be
    baseline = {baseline = "zero"} => baseline must be None
    learner.policy = {}           => policy must be the state of a model
    learner.optimizer.param_groups = [] => optimizer must be the state of
    learner.critic_optimizer = {state = {}} => critic_optimizer must be
"""
"""An entry of a saved state with another value, and what is said."""


def forged():
    for text, problem in lines(FORGED):
        keys, _, value = text.partition(" = ")
        yield problem, _set(*keys.split("."), value=settings_of(f"a = {value}")["a"])
    yield "generator must be the state", _set("sampler", "generator", value=torch.zeros(3))
    weight = ("learner", "policy", "model.embed_tokens.weight")
    yield "policy must be the state of a model", _set(*weight, value=lambda saved: saved[:-1])
    yield "got that of a 'TRL run'", lambda path: save_state(path, "TRL run", {})


def test_a_foreign_or_forged_checkpoint_is_refused_in_one_line_and_runs_no_code(tmp_path, resume):
    folder, marker = tmp_path / "vip-seed0", tmp_path / MARKER
    remedy = f"; delete {folder}, and the same command trains this run again from its start$"
    foreign = [("", lambda path, make=make: path.write_bytes(make(marker))) for make in FILES.values()]
    cases = [(f"^{folder}/checkpoint.pt: .*{problem}.*{remedy}", change) for problem, change in (*foreign, *forged())]
    assert_refused(resume, cases)
    assert not marker.exists()


def test_a_selection_shares_the_allocators_belief_and_is_logged(tmp_path, small_base_folder, whole):
    mixed = trainer(small_base_folder, "mixed", tmp_path)
    assert mixed.selector._belief is mixed.allocator.predictor
    folder, run = whole("spo")
    assert curve(folder)[-1]["selection"] == run.selector.metrics()
    assert "selection" not in curve(whole("vip")[0])[-1]


@pytest.mark.parametrize("estimator", ["rloo", "gae"])
def test_importance_weights_scale_what_a_prompt_adds_to_the_gradient(small_base, small_base_folder, whole, estimator):
    """The weights of a selection multiply those of the rollouts of its prompts."""
    training, run = settings(small_base_folder, estimator=estimator), whole("spo")[1]
    learner = PolicyLearner(small_base, training, None)
    prompts = run.prompts[:3]
    drawn = LedgerSampler(small_base, 0)(prompts, [6, 6, 6])
    groups = [Group(prompt, tuple(rollouts)) for prompt, rollouts in zip(prompts, drawn, strict=True)]
    rows_of = training_rows if estimator == "rloo" else learner._actor_critic_rows

    def row_weights(selection):
        return np.array([row.weight for row in rows_of(groups, training.decisions(SINGLE, selection))])

    factors = run.selector.weights(prompts)
    assert len(set(factors)) > 1
    assert row_weights(run.selector) == pytest.approx(row_weights(None) * np.repeat(factors, 6))


def test_fresh_prompts_are_not_in_the_batch_already(tmp_path, small_base_folder):
    run = trainer(small_base_folder, "uniform", tmp_path)
    run._draw(set(), 10)
    held = set()
    assert len({prompt.id for count in (4, 5, 7) for prompt in run._draw(held, count)}) == len(held) == 16
    with pytest.raises(ValueError, match="a batch needs 17 distinct prompts, the data set holds 16"):
        run._draw(held, 1)


@pytest.mark.slow
def test_the_policy_learns(tmp_path, small_base_folder):
    """Thirty updates raise the exact success on held-out problems."""
    lengths = {"problems": 256, "prompts_per_step": 16, "steps": 30, "evaluate_every": 30, "held_out": 200}
    training = settings(small_base_folder, learning_rate=6e-4, **lengths)
    Trainer(training, Uniform(rollouts_per_prompt=8), 0, tmp_path).run()
    first, *_, last = curve(tmp_path)
    assert last["success"] > first["success"] + 0.04


def test_graded_rewards_train(tmp_path, small_base_folder):
    allocator = VIP(rollouts_per_prompt=4, high=12, predictor=RunningVariance())
    training = settings(small_base_folder, reward="share")
    training.check(allocator)
    Trainer(training, allocator, 0, tmp_path).run()
    *_, last = curve(tmp_path)
    assert 0 < last["train_reward"] < 1
    assert len(set(last["counts"])) > 1
    baseline = replace(training, estimator="reinforce", baseline=Predicted(DiscountedCounts()))
    with pytest.raises(ValueError, match="reward must be 'exact' for the baseline predicted"):
        baseline.check(SINGLE)


def test_a_reward_with_parts_trains_and_outcomes_are_told_beside_it(tmp_path, small_base_folder):
    """Metrics and log have both. A group of equal outcomes and different lengths is a phantom."""
    shaped = settings(small_base_folder, length_weight=-0.3, format_weight=0.1, estimator="grpo")
    Trainer(shaped, UNIFORM, 0, tmp_path).run()
    record, rows = record_of_log(tmp_path / "rollouts"), logged(tmp_path)
    outcome, reward = record.components["correct"], record.reward
    stated = np.array([answer is not None for answer in rows["answer"].to_pylist()])
    np.testing.assert_allclose(reward, outcome - 0.3 * record.tokens / 14 + 0.1 * stated)
    assert len(np.unique(record.tokens)) > 2
    steps = np.repeat(record.step, record.trials)
    lines = curve(tmp_path)[1:]
    for line in lines:
        own = steps == line["step"]
        assert line["train_outcome"] == pytest.approx(outcome[own].mean())
        assert line["train_reward"] == pytest.approx(reward[own].mean())
        assert line["train_tokens"] == pytest.approx(record.tokens[own].mean())
    # Phantoms are a share of all groups in the metrics, and of those with two rewards or more in a diagnosis.
    assert np.mean([line["phantom"] for line in lines]) == pytest.approx(phantoms_of(record).whole.groups.value)


def test_a_run_ends_by_rollouts_tokens_or_steps_and_its_unit_is_a_key_of_every_record(tmp_path, small_base_folder):
    """Evaluations count in the same unit."""
    for unit, (key, length) in {"rollouts": ("rollouts", 40), "tokens": ("tokens", 200), "step": ("steps", 3)}.items():
        lengths = {"steps": None, key: length, "evaluate_every": 2 if unit == "step" else 16}
        training = settings(small_base_folder, prompts_per_step=4, **lengths)
        assert (training.unit, training.length) == (unit, length)
        Trainer(training, UNIFORM, 0, tmp_path / unit).run()
        records = curve(tmp_path / unit)
        *_, before, last = (record[unit] for record in records)
        assert before < length <= last
        assert [record["step"] for record in records if "success" in record] == (
            [0, 2, 3] if unit == "step" else [record["step"] for record in records]
        )


def test_the_baseline_of_the_settings_stays_as_it_was(tmp_path, small_base_folder):
    """Two runs of one Training object must not learn from each other."""
    training = settings(small_base_folder, problems=8, steps=3, estimator="reinforce", baseline=Optimal())
    for place in ("one", "two"):
        Trainer(training, UNIFORM, 0, tmp_path / place).run()
    assert curve(tmp_path / "one") == curve(tmp_path / "two")


WRONG = """
    steps = 0                      => steps must be at least 1, got 0; leave it out
    tokens = 9                     => a run ends by one of rollouts, tokens, steps, got 9 tokens and 6 steps; leave one
    slots = 0                      => slots must be at least 1, got 0
    age_bound = -1                 => age_bound must be at least 0, got -1
    learning_rate = nan            => learning_rate must be finite and above 0, got nan
    estimator = "ppo"              => estimator must be one of grpo, dr_grpo, rloo,.* gae, got 'ppo'
    estimator = "reinforce"        => a baseline goes with the estimators 'reinforce' and 'spo', got None
    trace = 1.5                    => trace must be at most 1, got 1.5
    discount = -0.1                => discount must be at least 0, got -0.1
    kl = -0.1                      => kl must be at least 0, got -0.1
    problems = 4                   => prompts_per_step must be at most problems, got 8 of 4
    problems = 1000000000          => problems must be at most 1000000, got 1000000000
    held_out = 1001                => held_out must be at most 1000, got 1001
    held_out = 0                   => held_out must be at least 1, got 0
    base = "mediun"                => base must be easy, medium, hard, forks, notes, or a folder
    prompts = "x.csv"              => prompts and reset_every are for learning without labels, got x.*; set
    reset_every = 4                => prompts and reset_every are for learning .*, got None and 4; set
    labels = "none", reset_every = 0  => reset_every must be at least 1, got 0; leave it out
    length_weight = nan            => length_weight must be at least -100, got nan
    reward = "share", format_weight = 0.1 => must be left out with the reward 'share', .* got 0.0 and 0.1; leave
    labels = "none", length_weight = 0.3  => rewards come from the votes, .* weights 0.3 and 0.0; leave them out
    labels = "none", reward = "share" => rewards come from the votes, got reward 'share', .*
"""


def test_wrong_settings_are_refused_at_construction(small_base_folder):
    def make(changes):
        return settings(**{"base": small_base_folder} | changes)

    refuse_lines(lambda text: make(settings_of(text)), WRONG)
    assert_refused(
        make,
        [
            ("rollouts must be at least 1, got 0", {"steps": None, "rollouts": 0}),
            ("tokens must be at least 1, got 0", {"steps": None, "tokens": 0}),
            (r"goes with the estimators 'reinforce' and 'spo', got Zero\(\) with 'rloo'", {"baseline": Zero()}),
            (
                r"got reward 'exact', baseline Zero\(\) and .*; leave them out, and set the all",
                {"labels": "none", "estimator": "reinforce", "baseline": Zero()},
            ),
        ],
    )
