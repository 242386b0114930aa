"""``apportion replay``: tables, JSON, and refusals in one line."""

import pytest

from tests.builders import write_jsonl
from tests.commands import parsed, printed, refuse_all


@pytest.fixture
def counts(tmp_path):
    rows = [{"id": str(q), "prompt": f"question {q}", "correct_of_8": [q % 9] * 8} for q in range(40)]
    return write_jsonl(tmp_path / "run.jsonl", rows)


def test_json_is_one_object_with_settings_applied(counts):
    settings = ["--set", "wide.name=vip", "--set", "wide.high=12", "--set", "wide.low=4"]
    content = parsed("replay", counts, "--rules", "wide,uniform", *settings, "--batch", 16)
    wide, uniform = content["allocators"]
    assert wide["name"] == "wide" and wide["ratios"]["variance"]["value"] < 1
    assert uniform["ratios"]["mixed"]["value"] == pytest.approx(1)
    assert content["recorded"]["rollouts"] == 40 * 8 * 8 and wide["tokens"] is None
    assert "even's" in printed("replay", counts, "--rules", "vip", "--batch", 16, "--full")


def test_wrong_input_ends_with_one_line(counts):
    wrong = """
        --rules vap       => a rule must have a known name, got 'vap'; did you mean 'vip'?
        --rules vip:guess => vip:guess.predictor (predictor) must have a known name, got 'guess'
        --rules uniform:counts => uniform takes no predictor, got 'counts'
        --rules vip --set vip=3 => the settings of 'vip' must be a table, got 3
        --rules vip --set hora.high=9 => settings must be of a rule that is replayed, got 'hora'
        --rules vip --set vip.low=2   => vip.low must be at least 3
        --rules voting    => answers must be recorded to replay voting
        --rules vip --outcomes pool   => --outcomes must be one of auto, pools, expected
        --rules vip --seeds 0         => --seeds must be 1 to 100
        --rules vip --rollouts 65     => vip cannot be replayed with 65 rollouts a prompt
        --rules mixed --set mixed.group_size=10001 => mixed.group_size must be at most 10,000
        --rules mixed --rollouts 1000000000        => mixed.group_size must be at most 10,000
        --rules uniform --set uniform.rollouts_per_prompt=1000000000 => at most 10,000,000 rollouts
                          => rules must name at least one rule
    """
    refuse_all(wrong, "replay", counts)
    refuse_all("--rules vip => the log must exist", "replay", counts.parent / "nothing")


def test_a_window_wider_than_the_run_says_that_drift_is_unknown(counts):
    said = " ".join(printed("replay", counts, "--rules", "uniform", "--window", 1000).split())
    assert "moves by nan" not in said and "move within it is unknown" in said


def test_one_prompt_has_no_interval(tmp_path):
    rows = "".join(f"{step},a,{(step + k) % 2}\n" for step in range(6) for k in range(4))
    (tmp_path / "run.csv").write_text(f"step,prompt,reward\n{rows}")
    found = parsed("replay", tmp_path / "run.csv", "--rules", "uniform")
    assert found["allocators"][0]["ratios"]["mixed"] == {"value": 1.0, "low": None, "high": None}
