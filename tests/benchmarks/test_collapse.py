"""Tests of the long training: it goes on where it stopped, and its table has the seeds that are finished."""

from benchmarks import collapse
from tests.benchmarks.small_runs import cells_of


def run_here(tasks, *_):
    """Run ``tasks`` in this process, without the imports of new ones."""
    for task in tasks:
        task.function(None, *task.arguments)


def test_a_long_training_goes_on_and_shows_the_seeds_that_are_finished(small_base_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collapse, "run_all", run_here)
    monkeypatch.setattr(collapse, "PROBLEMS", 8)
    training = {"base": f'"{small_base_folder}"', "rollouts": 128, "evaluate_every": 32, "held_out": 8}
    small = [*(f"training.{key}={value}" for key, value in training.items()), "seeds=[3, 4]"]
    collapse.main("all", *small, results=tmp_path)
    whole, page = cells_of(tmp_path, "collapse"), (tmp_path / "collapse.md").read_text()
    assert whole["facts"]["seeds"] == "3 4" and "2 of the 2 seeds" in page and len(page.split()) < 350
    assert all(len(curve) == 5 for arm in whole["evaluations"].values() for own in arm.values() for curve in own)
    cut = tmp_path / "runs" / "collapse" / "single_zero-seed4"
    (cut / "checkpoint.pt").unlink()
    (cut / "metrics.jsonl").write_text("")
    collapse.main("finished", *small, results=tmp_path)
    assert cells_of(tmp_path, "collapse")["facts"]["seeds"] == "3"
    collapse.main("all", *small, results=tmp_path)
    assert cells_of(tmp_path, "collapse")["evaluations"] == whole["evaluations"]
