"""The stable protocol: its rates, its draw by exact rates, and intervals that count bases."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from apportion.lab.report.results import Run
from apportion.lab.training.metrics import METRICS
from benchmarks import stable, stable_picture, stable_table
from benchmarks.common import RESULTS, table
from benchmarks.stable import SWEEP, ExactChoice, kept_rates, pool_of, stable_rate
from benchmarks.stable_table import Estimate, Runs, level
from tests.builders import write_jsonl


def write_run(arm, rate, unit, success):
    rollouts = np.linspace(0, 12_800, len(success))
    rows = [
        {"step": step, "rollouts": int(at), "tokens": 0, "success": value, "held_out_p": [], "counts": [1]}
        for step, (at, value) in enumerate(zip(rollouts, success, strict=True))
    ]
    folder = stable.folder_of(stable.sweep_name(rate), arm, *unit)
    folder.mkdir(parents=True)
    write_jsonl(folder / METRICS, rows)


def nothing_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(stable, "RUNS", tmp_path)
    monkeypatch.setattr(stable, "stored", dict)


@pytest.mark.parametrize(
    ("large", "chosen"),
    [
        ([[0.2, 0.8, 0.9]] * 3, 1e-3),
        ([[0.2, 0.8, 0.9], [0.2, 0.9, 0.6], [0.2, 0.9, 0.9]], 5e-4),  # the second collapses
        ([[0.2, 0.8, 0.9], [0.2, 0.4, 0.5], [0.2, 0.4, 0.5]], 5e-4),  # better once, worse on average
    ],
)
def test_the_best_mean_without_a_collapse_is_taken(tmp_path, monkeypatch, large, chosen):
    nothing_ended(tmp_path, monkeypatch)
    for unit, success in zip(SWEEP.units, large, strict=True):
        write_run("vip", 1e-3, unit, success)
        write_run("vip", 5e-4, unit, [0.2, 0.6, 0.8])
    assert stable_rate("vip") == chosen


def test_a_sweep_that_has_not_ended_gives_no_rate_and_collapses_everywhere_a_smaller_one(tmp_path, monkeypatch):
    nothing_ended(tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="must have ended"):
        stable_rate("vip")
    for rate in stable.RATES:
        write_run("vip", rate, SWEEP.units[0], [0.2, 0.8, 0.5])
    assert kept_rates("vip") == {stable.SMALLER: {}}


def test_the_oracle_draws_the_middle_and_others_only_if_it_is_too_small(monkeypatch):
    run = object.__new__(ExactChoice)
    run.seed, run.policy, run.problems, run.prompts = 0, None, (), list(range(6))
    monkeypatch.setattr(stable, "exact_success", lambda policy, problems: np.array([0.0, 0.5, 0.05, 0.89, 0.95, 0.2]))
    assert sorted(run._draw(set(), 3)) == [1, 3, 5]
    assert {1, 3, 5} < set(run._draw(set(), 4))
    monkeypatch.setattr(ExactChoice, "known", 0.0)
    draws = []
    for _ in range(40):
        run.looks = 4 * len(draws)
        draws.append(tuple(sorted(run._draw(set(), 3))))
    assert len(set(draws)) > 5


def test_each_base_has_held_out_problems_of_its_own_and_none_is_trained_on():
    one, other = pool_of(0, 5, 64), pool_of(1, 5, 64)
    assert not set(one.held_out) & set(one.problems) and len(one.held_out) == stable.HELD_OUT
    assert set(one.held_out) != set(other.held_out)


def test_units_of_a_base_are_averaged_before_the_interval():
    found = Estimate.of([0.1, 0.3, 0.5, 0.7], ["0", "0", "1", "1"])
    assert found.mean == pytest.approx(0.4)
    assert found.half == pytest.approx(12.706 * 0.2, rel=1e-3)
    assert Estimate.of([0.1, 0.3], ["0", "0"]).mean == pytest.approx(0.2)


def test_the_interval_holds_its_level_with_a_part_of_the_base_and_a_naive_one_does_not():
    for share in (0.0, 0.5):
        assert level(5, 2, share) == pytest.approx(0.05, abs=0.006)
    assert level(5, 2, 0.5, clusters=False) > 0.1


def test_the_share_of_the_bases_in_the_variance_is_found():
    random = np.random.default_rng(0)
    bases = np.repeat(np.arange(4000), 2)
    values = random.normal(0, 2, 4000)[bases] + random.normal(0, 1, 8000)
    assert stable_table.of_bases(values, bases) == pytest.approx(0.8, abs=0.02)
    assert stable_table.of_bases([0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1]) == 0


def test_arms_are_paired_by_the_units_that_both_have():
    def row(last):
        return {"rollouts": [0, 100], "success": [0.0, last]}

    runs = Runs({"uniform_8": {"0 1": row(0.4), "1 2": row(0.6)}, "vip": {"0 1": row(0.5)}}, level=0.3)
    assert runs.less("vip", "uniform_8").mean == pytest.approx(0.05)
    assert runs.ratio("uniform_8", "uniform_8").startswith("1.00 (1.00 to 1.00")
    assert Runs({"uniform_8": {"0 1": row(0.2)}}, level=0.3).ratio("uniform_8", "uniform_8") == "-"
    assert stable_table.holm([0.01, 0.04, 0.02]).tolist() == [0.03, 0.04, 0.04]


def test_runs_beside_a_setting_are_corrected_on_their_own_page_alone():
    def rows(*ends):
        return {f"{base} 1": {"rollouts": [0, 100], "success": [0.0, end]} for base, end in enumerate(ends)}

    more = {"pass_32": 1.0, "mixed": [0.5, 0.5]}
    found = {"uniform_2": rows(0.9, 0.9, 0.8), "uniform_8": rows(0.4, 0.5, 0.5), "vip": rows(0.5, 0.6, 0.8)}
    found = {arm: {unit: row | more for unit, row in own.items()} for arm, own in found.items()}
    runs = Runs({"uniform_2": found.pop("uniform_2")}, 0.3, beside=found)
    _, table_rows = stable_table.arms_table(runs, {"uniform_8": 1.0})
    p = runs.less("uniform_2", "uniform_8").p
    assert {row[0]: row[4] for row in table_rows} == {"uniform_8": "-", "vip": "-", "uniform_2": f"{p:.3f}"}
    assert "optimal" not in stable_table.contrasts_table(runs)


def test_a_run_that_was_followed_has_its_belief_and_the_share_of_the_middle():
    columns = {
        "prompts": [0, 1, 0, 1],
        "p": [0.05, 0.5, 0.5, 0.95],
        "belief": [0.2, 0.04, 0.4, 0.02],
        "counts": [8] * 4,
    }
    found = stable_table._moves(Run({}, {key: np.array(column, float) for key, column in columns.items()}))
    assert found["middle"] == 0.5 and found["belief"] == pytest.approx([0.3, 0.03])
    assert found["visits"] == 2 and found["moves"][0] == pytest.approx(0.45)


@pytest.mark.parametrize("name", stable.SETTINGS)
def test_the_pages_have_the_committed_runs(name):
    found = json.loads(stable_table.DATA.read_text())
    if name not in found:
        pytest.skip("no unit of this setting is complete")
    runs, rates = stable_table.runs_of(found, name)
    page, names = next((page, names) for page, names in stable.PAGES.items() if name in names)
    parts = (RESULTS / f"{page}.md").read_text().split("\n\n")
    assert table(*stable_table.arms_table(runs, rates)) in parts
    assert name != names[0] or stable_table.contrasts_table(runs) in parts


def test_a_stored_run_has_ended_and_is_not_trained_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stable, "RUNS", tmp_path)
    stable.train("quick", stable.SETTINGS["quick"], "vip", *stable.SETTINGS["quick"].units[0])
    assert not list(tmp_path.rglob(METRICS)) and not capsys.readouterr().out
    assert stable_rate("vip") == 5e-4


def test_the_picture_has_the_committed_curves():
    drawn = stable_picture.learning()
    assert (stable_picture.PICTURES / "learning.svg").read_text() == drawn
    names = [each.text for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert set(stable_picture.SERIES.values()) < set(names)
