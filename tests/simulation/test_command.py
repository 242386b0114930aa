import json

import numpy as np
import pytest

from apportion.cli.simulate import POPULATIONS
from apportion.records import open_run
from apportion.simulation import SHAPES, Population, simulated_record
from tests.commands import printed, refuse_all

SMALL = ["simulate", "--prompts", "64", "--steps", "3", "--prompts-per-step", "16"]


def test_the_help_names_every_population():
    assert tuple(sorted(SHAPES)) == POPULATIONS


def test_rules_are_named_by_spaces_or_commas():
    found = json.loads(printed(*SMALL, "--rules", "vip", "uniform+mixed", "hora,even", "--json"))
    assert list(found["rules"]) == ["uniform", "vip:oracle", "vip", "uniform+mixed", "hora", "even"]
    assert found["rules"]["uniform"]["variance_over_uniform"] == {"mean": 1.0, "half_width": 0.0}
    assert found["rules"]["hora"]["variance_over_uniform"]["mean"] is None
    assert len(found["rules"]["vip"]["by_step"]["mixed"]) == 3


def test_the_table_has_a_line_a_rule():
    said = printed(*SMALL, "--rules", "vip", "--embedding-size", "4", "--rate-correlation", "0.8")
    assert [line.split()[0] for line in said.splitlines()[3:6]] == ["uniform", "vip:oracle", "vip"]
    assert "embeddings correlate" in said and "known rates correlate" in said


def test_a_simulated_run_is_written_as_a_rollout_log(tmp_path):
    printed(*SMALL, "--rules", "hora", "--drift", "0.1", "--log", tmp_path / "log")
    read, made = open_run(tmp_path / "log"), simulated_record(Population(prompts=64, drift=0.1), "hora", 3, 16)
    assert np.array_equal(read.reward, made.reward) and np.array_equal(read.asked, made.asked)


def test_wrong_options_end_with_one_line():
    wrong = """
        --population x        => the population must be one of
        --seeds 1001          => seeds must be 1 to 1,000
        --rollouts 2          => vip:oracle cannot be simulated with 2 rollouts a prompt: rollouts_per_prompt must be
        --seeds 0             => seeds must be 1 to 1,000, got 0
        --rules vip --set vip=3  => the settings of 'vip' must be a table, got 3
        --steps 1000000000000 => steps must be at most 1,000,000
        --drift 1e308         => drift must be 0 to 100
        --embedding-signal 1e308 => embedding_signal must be 0 to 1e+06
        --trend -1e308        => trend must be -100 to 100
        --like . --population easy => one of --population or --like, got easy and .
        --like no/such/run    => --like must be the path of a run
        --log folder          => --log writes the run of one rule, got 0
        --false-positive -1   => false_positive must be 0 to 1
    """
    refuse_all(wrong, *SMALL)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [["--false-positive", "1"], ["--trend", "100"]])
def test_success_without_variance_leaves_ratios_open(options):
    found = json.loads(printed(*SMALL, "--rules", "vip", *options, "--json"))
    assert found["rules"]["vip"]["noise_over_uniform"]["mean"] is None
