"""Tests of the healthy runs with shaped rewards: what is measured, and how runs are told apart."""

import numpy as np
import pytest

from benchmarks import shaped_healthy
from benchmarks.shaped_healthy import COLUMNS, SHAPINGS, class_of, counts_of, main, names_of, read_runs


@pytest.fixture
def small(small_base_folder, tmp_path, monkeypatch):
    """Make four runs of three updates of four prompts from the small base, of one seed, with data in ``tmp_path``."""
    only = {"base": (small_base_folder,), "prompts_per_step": (4,), "group": (4,), "estimator": ("reinforce",)}
    monkeypatch.setattr(shaped_healthy, "SETTINGS", shaped_healthy.SETTINGS | only)
    shapings = {name: SHAPINGS[name] for name in ("none", "noise 0.1", "notes +0.1", "length -0.3, gated")}
    monkeypatch.setattr(shaped_healthy, "SHAPINGS", shapings)
    monkeypatch.setattr(shaped_healthy, "ONLY_NOTES", ())
    monkeypatch.setattr(shaped_healthy, "HELD_OUT", 8)
    monkeypatch.setattr(shaped_healthy, "SEEDS", (3,))
    monkeypatch.setattr(shaped_healthy, "STEPS", 3)
    monkeypatch.setattr(shaped_healthy, "EVALUATE", 2)
    monkeypatch.setattr(shaped_healthy, "DATA", tmp_path / "runs.npz")
    return tmp_path


def test_every_shaping_trains_phantoms_but_a_gated_one(small):
    main(minutes=10, results=small)
    found = read_runs()
    assert len(found) == 4
    columns = {name: dict(zip(COLUMNS, run[1:].T, strict=True)) for (_, name), run in found.items()}
    assert np.isnan(columns["none"]["groups"]).all() and not columns["none"]["share"].any()
    for name in ("noise 0.1", "notes +0.1"):
        assert (columns[name]["groups"] > 0).any() and columns[name]["share"].max() > 0
    assert (columns["length -0.3, gated"]["rest"] < 0).all()
    # The first updates see the same rollouts.
    assert len({each["outcome"][0] for name, each in columns.items() if name != "none"}) == 1
    assert "1 of 1 seeds are whole" in (small / "shaped_healthy.md").read_text()


def test_a_run_is_told_by_its_accuracy_beside_that_of_its_unshaped_run():
    def run(*accuracy):
        made = np.zeros((len(accuracy), len(COLUMNS)))
        made[:, -1], made[1:, COLUMNS.index("share")] = accuracy, 0.2
        return made

    runs = {(1, "none"): run(0.2, 0.4, 0.6)}
    ends = {
        "a": (0.2, 0.4, 0.58),
        "b": (0.2, 0.6, 0.58),
        "c": (0.2, 0.4, 0.5),
        "d": (0.2, 0.3, 0.29),
        "e": (0.7, 0.6, 0.6),
    }
    runs |= {(1, name): run(*accuracy) for name, accuracy in ends.items()}
    assert [class_of(runs, 1, name) for name in ("none", *ends)] == ["healthy"] * 3 + ["harmed", "died", "harmed"]
    assert counts_of(runs, [(1, "a"), (1, "d")]) == (2, 2, 0, 0)


def test_seeds_draw_settings_of_their_own_and_lines_without_notes_leave_two_shapings_out():
    bases = {shaped_healthy.setting_of(seed)["base"] for seed in shaped_healthy.SEEDS}
    assert bases == {"notes", "medium"}
    sizes = {shaped_healthy.setting_of(seed)["base"]: len(names_of(seed)) for seed in shaped_healthy.SEEDS}
    assert sizes == {"notes": 7, "medium": 5}
