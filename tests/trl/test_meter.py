"""The meter of a stock trainer: it changes nothing, says what other rules would have done, and when a run is sick."""

import numpy as np
import pytest
from trl import GRPOTrainer, RLOOTrainer

from apportion import Prompt, Uniform
from apportion.trl import AllocatedGRPOTrainer, Meter
from tests.trl.test_parity import assert_same
from tests.trl.tiny import Judge, mark, trained

NAMES = ("mixed", "mixed_expected", "dead_rollouts", "mixed_chosen", "saved_chosen", "variance_vip", "saved_vip")
SHARED = {"steps_per_generation": 2, "gradient_accumulation_steps": 2, "num_iterations": 2}
SHARED |= {"per_device_train_batch_size": 16}


@pytest.mark.parametrize(
    ("trainer", "config"), [(RLOOTrainer, {}), (GRPOTrainer, SHARED)], ids=["plain", "shared batches"]
)
def test_the_run_stays_the_same_to_the_last_bit(make, tmp_path, trainer, config):
    config, runs = {"max_steps": 6} | config, []
    for metered in (False, True):
        built = make(trainer, folder=tmp_path / str(metered), config=config)
        if metered:
            meter = Meter(built)
            built.add_callback(meter)
        runs.append((trained(built), built.model.state_dict()))
    (theirs, (history, weights)), judge = runs, built.reward_funcs[0]
    measured = [row for row in history if "meter/mixed" in row]
    assert len(measured) == len(judge.rounds) == (3 if "num_iterations" in config else 6)
    for row, calls in zip(measured, judge.rounds, strict=True):
        groups = np.array([call.score for call in calls]).reshape(4, 8)
        assert row["meter/mixed"] == np.mean(np.ptp(groups, axis=1) > 0)
    assert all(np.isfinite(row[f"meter/{name}"]) for row in measured[1:] for name in NAMES)
    asked = [Prompt(call.prompt) for calls in judge.rounds for call in calls[::8]]
    learnt, unseen = (meter.meter.predictor.predict(prompts).mean for prompts in (asked, [Prompt("unseen")]))
    assert (learnt != unseen).sum() > len(measured)  # it learns of each prompt of a batch
    plain = [{name: value for name, value in row.items() if not name.startswith("meter/")} for row in history]
    assert_same((plain, weights), theirs)


def test_several_weighted_functions_and_missing_scores_are_one_reward(make):
    """One judges what the other does not, and neither judges some."""
    judge = Judge(none=lambda text: text[:1] in "bcdefghij")
    bonus = Judge(mark=lambda text, k: 1.0, none=lambda text: text[:1] not in "bcdefgh", name="bonus")
    config = {"max_steps": 2, "reward_weights": [1.0, 0.5]}
    built = make(GRPOTrainer, config=config, reward_funcs=[judge, bonus])
    built.add_callback(Meter(built))
    for row, one, two in zip(trained(built), judge.rounds, bonus.rounds, strict=False):
        rewards = [0.5 if b.score else np.nan if a.score is None else a.score for a, b in zip(one, two, strict=True)]
        groups = [own[~np.isnan(own)] for own in np.array(rewards).reshape(4, 8)]
        kept = [own for own in groups if len(own) >= 2]
        assert row["meter/mixed"] == pytest.approx(np.mean([np.ptp(own) > 0 for own in kept]))


def test_a_run_that_collapses_is_told_once_in_one_line(make, caplog):
    def dying(completions, k, trainer_state=None, **rest):
        calls.append(len(completions))
        alive = len(calls) <= 20
        return [float(alive and mark(text, 30)) for text in completions]

    calls = []
    built = make(GRPOTrainer, config={"max_steps": 32, "learning_rate": 1e-5}, reward_funcs=[dying])
    built.add_callback(Meter(built))
    trained(built)
    said = [record.getMessage() for record in caplog.records if record.name == "apportion.trl.meter"]
    (collapse,) = [line for line in said if "(collapse)" in line]
    assert collapse.startswith("SICK from step 21 (collapse): the mean reward fell from")
    assert len(said) == len({line.split("(")[1] for line in said}) and not any("\n" in line for line in said)


def test_a_trainer_with_an_allocator_and_other_objects_are_refused(make):
    for wrong in (make(AllocatedGRPOTrainer, allocator=Uniform(8)), object()):
        with pytest.raises(
            TypeError, match=r"trainer must be TRL's GRPOTrainer or RLOOTrainer without an allocator, got"
        ):
            Meter(wrong)


def test_phantom_groups_of_several_functions_are_logged_and_told(make, caplog):
    """The second function pays for more at each step, and for what is right least often."""

    def bonus(completions, **rest):
        calls.append(1)
        return [0.1 * len(calls) - 0.05 * mark(text, 8) for text in completions]

    calls, judge = [], Judge(name="accuracy")
    config = {"max_steps": 14, "learning_rate": 1e-8}
    built = make(GRPOTrainer, config=config, reward_funcs=[bonus, judge])
    built.add_callback(Meter(built))
    history = [row for row in trained(built) if "meter/mixed" in row]
    for row, scored in zip(history, judge.rounds, strict=True):
        outcomes = np.array([call.score for call in scored]).reshape(4, 8)
        pays = -np.array([mark(call.text, 8) for call in scored]).reshape(4, 8)
        phantom = (np.ptp(outcomes, axis=1) == 0) & (np.ptp(pays, axis=1) > 0)
        spread = np.ptp(outcomes + 0.05 * pays, axis=1) > 0
        assert row["meter/phantom"] == phantom.mean()
        assert row["meter/phantom_gradient"] == pytest.approx(phantom.sum() / spread.sum())
    told = [line for line in caplog.messages if line.startswith("SICK (shaping): from step ")]
    assert len(told) == 1
    with pytest.raises(ValueError, match="outcome must be one of bonus, accuracy, got 'acuracy'"):
        Meter(built, outcome="acuracy")
