"""Each paper by its name: the settings that it prints, and those that its authors released."""

import tomllib

import numpy as np
import pytest
from scipy.optimize import minimize

from apportion import HORA, VIP, Batch, Belief, Prompt, Uniform, presets
from apportion.baselines import Optimal
from apportion.config import ConfigError, build, dump, to_toml
from apportion.predictors import GaussianProcess, MovingAverage, PrecomputedEmbeddings
from apportion.scheduler.decisions import TrainerAllocation
from apportion.scheduler.saved_settings import check_same_settings
from apportion.selection import Mixed
from apportion.types import Rollout
from tests.builders import finished
from tests.cases import check_all, check_refused, lines

PROMPTS = [Prompt(f"{q} + {q} =") for q in range(24)]
BY_GRPO = ("hora_as_printed", "ar3po_as_printed", "ttrl_as_printed", "optpo_as_printed")


def planned(preset, success):
    """The counts that a preset's rule plans for prompts with believed ``success`` [P]."""
    belief = Belief.from_mean(np.asarray(success), 2.0)
    return preset.allocator.plan(Batch.start(PROMPTS[: len(success)], belief)).counts


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_the_released_vip_minimises_the_released_objective(estimator):
    """It is the sum of a / (n - 1), or a (n - 1) / n^2, plus gamma log(p) n, with a = p (1 - p)."""
    p = np.clip(np.random.default_rng(0).beta(0.5, 0.5, 24), 1e-6, 1 - 1e-6)
    preset = presets.vip_as_released(estimator, 8)
    counts, gamma, a = planned(preset, p), {"rloo": 0.0007, "dr_grpo": 0.0004}[estimator], p * (1 - p)

    def objective(n):
        noise = a / (n - 1) if estimator == "rloo" else a * (n - 1) / n**2
        return float(np.sum(noise + gamma * np.log(p) * n))

    budget = {"type": "eq", "fun": lambda n: n.sum() - 8 * 24}
    options, constraints = {"maxiter": 1000, "ftol": 1e-12}, [budget]
    theirs = minimize(
        objective, np.full(24, 8.0), method="SLSQP", bounds=[(4, 32)] * 24, constraints=constraints, options=options
    )
    assert counts.sum() == 8 * 24 and counts.min() >= 4 and counts.max() <= 32
    assert objective(counts) == pytest.approx(theirs.fun, rel=0.01) and np.abs(counts - theirs.x).max() <= 1.0
    printed = planned(presets.vip_as_printed(estimator, 8), p)
    assert counts[p.argmin()] > 2 * printed[p.argmin()] and counts[p.argmax()] == 4


def test_the_released_process_begins_at_its_prior_mean_and_takes_rates_as_exact():
    embedder = PrecomputedEmbeddings.from_array(PROMPTS, np.arange(24.0)[:, None] * 10)
    printed, released = (
        type(given)(embedder, given.bandwidth or 1.0, given.noise, clip=given.clip, prior_mean=given.prior_mean)
        for given in (presets.vip_as_printed().allocator.predictor, presets.vip_as_released().allocator.predictor)
    )
    assert printed.predict(PROMPTS).mean == pytest.approx(0.5)
    assert released.predict(PROMPTS).mean == pytest.approx(1 / (1 + np.e))
    batch = finished(PROMPTS[:1], [[Rollout(True)] * 4])
    for predictor, believed in ((printed, 0.95), (released, 1 - 1e-6)):
        predictor.update(batch)
        assert predictor.predict(PROMPTS[:1]).mean == pytest.approx(believed, abs=1e-9)
    assert released.predict(PROMPTS[5:]).mean == pytest.approx(1 / (1 + np.e))


def test_the_other_papers_have_their_printed_numbers_whatever_the_engine_says():
    for make, asked in ((presets.hora_as_printed, 16), (presets.ar3po_as_printed, 8), (presets.optpo_as_printed, 64)):
        given = make().allocator
        assert given.with_budget(8).size(10).asked == 10 * asked
    assert presets.hora_as_printed().allocator.pre_rollouts == 8
    assert presets.optpo_as_printed().allocator.size(1).kept == presets.ttrl_as_printed().allocator.size(1).kept == 32
    assert presets.ttrl_as_printed().allocator.size(1).asked == 64
    assert presets.optpo_as_printed().allocator.ties == "leader"


def test_a_paper_that_trains_by_grpo_has_grpo_whatever_the_trainers_own_formula_is():
    for name in BY_GRPO:
        assert TrainerAllocation(preset=name).trained_estimator == "grpo"


def test_a_bonus_sends_rollouts_to_a_prompt_that_is_believed_hopeless():
    """Its logarithm would be infinite, and the plan of the next batch refused."""
    allocator = VIP(rollouts_per_prompt=4, bonus=0.0007, predictor=MovingAverage())
    allocator.observe(finished(PROMPTS[:2], [[Rollout(False)] * 2, [Rollout(True)] * 2]))
    assert allocator.start(PROMPTS[:2]).belief.mean.tolist() == [0.0, 1.0]
    assert allocator.plan(allocator.start(PROMPTS[:2])).counts.tolist() == [5, 3]


def test_every_preset_has_its_name():
    made = {name for name, each in vars(presets).items() if callable(each) and each.__module__ == presets.__name__}
    assert presets.PRESETS.keys() == made - {"Preset", "preset_of"}
    assert all(name == each.__name__ and presets.preset_of(name) for name, each in presets.PRESETS.items())
    with pytest.raises(
        ValueError, match=r"^preset must be known, got 'hora_printed'; did you mean 'hora_as_printed'\?"
    ):
        presets.preset_of("hora_printed")


def test_a_name_is_the_same_as_what_it_stands_for_in_a_checkpoint_and_in_a_file():
    for name in presets.PRESETS:
        by_name, spelled_out = TrainerAllocation(preset=name), TrainerAllocation(**presets.PRESETS[name]().arguments())
        assert by_name == spelled_out and by_name.settings == spelled_out.settings and by_name.preset is None
        assert build(TrainerAllocation, {"preset": name}) == spelled_out
        assert build(TrainerAllocation, tomllib.loads(to_toml(dump(by_name)))) == spelled_out
        other = TrainerAllocation(preset="vip_as_printed" if name == "vip_as_released" else "vip_as_released")
        with pytest.raises(
            ValueError, match=r"^(allocator|baseline)\S* must be .*, as in the run that wrote the checkpoint"
        ):
            check_same_settings(by_name.settings, other.settings)


def test_what_a_preset_leaves_open_may_be_given_beside_it():
    found = TrainerAllocation(preset="hora_as_printed", selection="mixed")
    assert found.allocator == presets.hora_as_printed().allocator and found.selection == Mixed()
    found = TrainerAllocation(preset=presets.hora_as_printed("reinforce"), baseline="optimal")
    assert (found.estimator, found.baseline) == ("reinforce", Optimal())
    assert TrainerAllocation(preset=presets.vip_as_printed("dr_grpo")).estimator == "dr_grpo"


def test_a_preset_that_does_not_fit_is_refused():
    beside = "{} must be left out beside a preset whose own is {}, got '{}'; leave out the preset".format
    wrong = [
        ({"preset": "vip_as_pinted"}, "preset must be known, .*; did you mean 'vip_as_printed'"),
        ({}, "allocator must be given, or a preset, which has one, got neither; name one"),
        ({"preset": "vip_as_printed", "allocator": HORA()}, beside("allocator", "vip", "hora")),
        ({"preset": "vip_as_printed", "estimator": "dr_grpo"}, beside("estimator", "rloo", "dr_grpo")),
    ]
    check_refused(ValueError, lambda given: TrainerAllocation(**given), wrong)
    with pytest.raises(TypeError, match=r"^preset must be a Preset or the name of one, got HORA"):
        TrainerAllocation(preset=HORA())


def test_a_table_with_the_name_of_a_preset_is_read_strictly():
    assert build(presets.Preset, {"name": "vip_as_printed", "estimator": "dr_grpo"}).estimator == "dr_grpo"
    wrong = """
        preset = "hora_printed" => (preset) must have a known name, got .*; did you mean 'hora_as_printed'
        preset = {name = "spo", roh = 0.5} => (spo) has no key 'roh'; did you mean 'rho'
        preset = {name = "mopps_with_refill", target = 4.0} => .target must be between 0 and 1, got 4.0
        preset = {name = "vip_as_printed", estimator = "grpo"} => .estimator must be one of 'rloo', 'dr_g
    """

    def check(table, said):
        before, _, after = said.partition(".*")
        with pytest.raises(ConfigError) as caught:
            build(TrainerAllocation, tomllib.loads(table), "decisions")
        told = str(caught.value)
        assert told.startswith("decisions.preset") and before in told and after in told

    check_all(check, lines(wrong))


def test_vip_as_printed_has_the_papers_process_and_formula():
    found = presets.vip_as_printed("dr_grpo", 12)
    assert found.allocator == VIP(estimator="dr_grpo", rollouts_per_prompt=12, predictor=GaussianProcess())
    assert found.estimator == found.allocator.needs.estimator == "dr_grpo"
    with pytest.raises(ValueError, match="estimator must be one of rloo, dr_grpo, got 'grpo'; the paper of vip"):
        presets.vip_as_printed("grpo")


def test_spo_draws_prompts_by_the_baseline_that_it_subtracts():
    found, prompts = (
        presets.spo({"a": 0.75}, rho=0.9),
        [Prompt("one", id="a"), Prompt("two"), Prompt("three", rate=0.25)],
    )
    assert found.allocator == Uniform(rollouts_per_prompt=1) and found.estimator == "spo"
    assert (found.baseline.rho, found.selection.floor) == (0.9, 0.05)
    found.selection.prepare(prompts)
    batch = finished(prompts, [[Rollout(True)], [Rollout(False)], []], asked=[1, 1, 1])
    for _ in range(3):
        assert found.selection._predict().mean.tolist() == found.baseline.predict(prompts).tolist()
        found.baseline.update(batch)
        found.selection.observe(batch)
    restored = presets.spo({"a": 0.75}, rho=0.9).selection
    restored.prepare(prompts)
    restored.load_state_dict(found.selection.state_dict())
    assert restored._predict() == found.selection._predict()
