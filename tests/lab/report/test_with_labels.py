import pytest
from matplotlib.figure import Figure

from apportion.lab.report.measures import arm_table, summarise
from apportion.lab.report.picture import draw_curves
from apportion.lab.report.results import BANDS, Run
from apportion.lab.report.with_labels import MEASURES, findings, verdict
from tests.builders import write_jsonl


def write_run(directory, success, counts, p):
    directory.mkdir(parents=True)
    lines = [{"step": 0, "rollouts": 0, "tokens": 0, "success": success[0], "pass_32": 0.5}]
    for step, value in enumerate(success[1:], start=1):
        lines.append(
            {
                "step": step,
                "rollouts": 10 * step,
                "tokens": 70 * step,
                "without_correct": 0.25,
                "rows": 8.0,
                "cpu_seconds": 1.5,
                "success": value,
                "pass_32": 0.9,
                "informative": 0.5,
                "p": p,
                "counts": counts,
            }
        )
    write_jsonl(directory / "metrics.jsonl", lines)
    return Run.read(directory)


def runs(tmp_path, name, lift, counts):
    return [
        write_run(tmp_path / f"{name}{seed}", [0.2, 0.4 + lift + noise, 0.6 + lift], counts, [0.01, 0.5, 1.0])
        for seed, noise in enumerate([0.0, 0.02, -0.02])
    ]


def test_a_run_reads_its_curve_and_where_its_rollouts_went(tmp_path):
    run = write_run(tmp_path / "a", [0.2, 0.4, 0.6], [2, 4, 6], [0.01, 0.5, 1.0])
    assert run.area == pytest.approx((0.3 + 0.5) / 2)
    assert run.rollouts_per_prompt == 4
    assert run.by_band("counts").tolist() == [4, 0, 0, 8, 0, 12]
    assert run.by_band().tolist() == [2, 0, 0, 2, 0, 2]
    assert len(BANDS) == 7


def test_differences_are_paired_by_seed(tmp_path):
    """Noise that both arms share by seed cancels, so the difference is exact although the means are not."""
    summary = summarise(
        MEASURES,
        {"uniform": runs(tmp_path, "u", 0.0, [4, 4, 4]), "vip": runs(tmp_path, "v", 0.1, [3, 6, 3])},
        "uniform",
    )
    vip = summary[1]
    assert vip.area_difference.mean == pytest.approx(0.075)
    assert vip.area_difference.half_width == pytest.approx(0, abs=1e-12)
    assert vip.area.half_width > 0.01
    assert verdict(summary, "uniform") == "area differs from uniform's beyond noise: vip (+0.075 ± 0.000)"
    assert len(arm_table(MEASURES, summary)) == 4


def test_no_claim_where_noise_covers_it(tmp_path):
    same = {"uniform": runs(tmp_path, "u", 0.0, [4, 4, 4]), "vip": runs(tmp_path, "v", 0.0, [4, 4, 4])}
    assert verdict(summarise(MEASURES, same, "uniform"), "uniform") == "within noise of uniform: vip"
    single = {name: mine[:1] for name, mine in same.items()}
    assert "can be told from noise" in verdict(summarise(MEASURES, single, "uniform"), "uniform")


def test_an_arm_without_a_matched_control_is_pointed_out(tmp_path):
    summary = summarise(
        MEASURES,
        {"uniform": runs(tmp_path, "u", 0.0, [8, 8, 8]), "few": runs(tmp_path, "f", 0.1, [2, 2, 2])},
        "uniform",
    )
    assert any(
        "few has no control with as many rollouts a prompt (2.0)" in line
        for line in findings(summary, "uniform", 3, [])
    )


def test_a_band_without_prompts_has_a_dash_and_not_nan(tmp_path):
    summary = summarise(MEASURES, {"uniform": runs(tmp_path, "u", 0.0, [4, 4, 4])}, "uniform")
    text = "\n".join(findings(summary, "uniform", 3, []))
    assert "nan" not in text
    assert "".join(text.splitlines()[-1].split()) == "|uniform|4.0|-|-|4.0|-|4.0|"


def test_curves_that_coincide_are_told_apart_and_no_legend_lies_on_them(tmp_path):
    same = {name: runs(tmp_path, name, 0.0, [4, 4, 4]) for name in ("uniform", "vip", "hora")}
    axes = Figure(layout="constrained").subplots()
    draw_curves(axes, same, "success")
    thick = [line for line in axes.lines if line.get_linewidth() == 2]
    styles = {(line.get_linestyle(), line.get_marker(), line.get_color(), line.get_zorder()) for line in thick}
    assert len(thick) == len(styles) == 3 and len({line.get_linestyle() for line in thick}) == 3
    axes.figure.canvas.draw()
    legend = axes.get_legend()
    assert legend.get_frame().get_alpha() == 1.0
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
