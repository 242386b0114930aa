import numpy as np
import pytest

from apportion.lab.report.results import Run
from apportion.lab.report.with_labels import report
from tests.builders import write_jsonl


def write_run(directory, success, counts, p):
    directory.mkdir(parents=True)
    step = {"rows": 8.0, "cpu_seconds": 1.5, "informative": 0.5, "p": p, "counts": counts}
    lines = [
        {"step": s, "rollouts": 10 * s, "tokens": 70 * s, "success": value, "pass_32": 0.9} | (step if s else {})
        for s, value in enumerate(success)
    ]
    write_jsonl(directory / "metrics.jsonl", lines)
    return Run.read(directory)


def runs(tmp_path, name, lift, counts):
    return [
        write_run(tmp_path / f"{name}{seed}", [0.2, 0.4 + lift + noise, 0.6 + lift], counts, [0.01, 0.5, 1.0])
        for seed, noise in enumerate([0.0, 0.02, -0.02])
    ]


def test_a_run_reads_its_curve(tmp_path):
    run = write_run(tmp_path / "a", [0.2, 0.4, 0.6], [2, 4, 6], [0.01, 0.5, 1.0])
    assert run.area == pytest.approx((0.3 + 0.5) / 2)
    assert run.rollouts_per_prompt == 4


def test_a_run_knows_its_visits_and_how_rates_move_between_them():
    """Prompt 3 comes three times and rises by .3 and .1, prompt 5 twice and falls by .2, prompt 8 once."""
    prompts, p = np.array([3, 5, 8, 3, 5, 3]), np.array([0.1, 0.9, 0.5, 0.4, 0.7, 0.5])
    visits, moves = Run({}, {"prompts": prompts, "p": p}).revisits
    assert visits == 2 and moves == pytest.approx(np.sqrt((0.3**2 + 0.1**2 + 0.2**2) / 3))
    assert (
        np.isnan(Run({}, {"p": p}).revisits).all()
        and np.isnan(Run({}, {"prompts": prompts[:3], "p": p[:3]}).revisits).all()
    )


def test_differences_are_paired_by_seed(tmp_path):
    """Noise that both arms share by seed cancels, so the difference is exact although the means are not."""
    (_, vip), lines = report(
        {"uniform": runs(tmp_path, "u", 0.0, [4, 4, 4]), "vip": runs(tmp_path, "v", 0.1, [3, 6, 3])}, "uniform"
    )
    assert vip.area_difference.mean == pytest.approx(0.075)
    assert vip.area_difference.half_width == pytest.approx(0, abs=1e-12)
    assert vip.area.half_width > 0.01
    assert lines[5].startswith("area differs from uniform's beyond noise: vip (+0.075 ± 0.000) (3 seeds;")


def test_no_claim_where_noise_covers_it(tmp_path):
    same = {"uniform": runs(tmp_path, "u", 0.0, [4, 4, 4]), "vip": runs(tmp_path, "v", 0.0, [4, 4, 4])}
    assert report(same, "uniform")[1][5].startswith("Within noise of uniform: vip (3 seeds")
    single = {name: mine[:1] for name, mine in same.items()}
    assert "can be told from noise" in report(single, "uniform")[1][5]


def test_an_arm_without_a_matched_control_is_pointed_out(tmp_path):
    arms = {"uniform": runs(tmp_path, "u", 0.0, [8, 8, 8]), "few": runs(tmp_path, "f", 0.1, [2, 2, 2])}
    said = report(arms, "uniform")[1][6:]
    assert [line.split(" has no control with as many rollouts a prompt ")[0] for line in said] == ["uniform", "few"]
