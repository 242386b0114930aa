"""Studies without labels by command, in real processes, on the small base and a file of prompts."""

import json
from pathlib import Path

import pytest

from apportion.config import ConfigError
from apportion.lab.command import run_study
from apportion.lab.study.design import LABEL_FREE_DEFAULT, claim, read_pools, read_study
from apportion.lab.world.task import problem_pool
from tests.cases import assert_refused
from tests.lab.states import curves, trained, write_prompts
from tests.lab.test_command import ROOT

STUDIES = [path for path in sorted((ROOT / "examples").glob("*.toml")) if "[allocators." in path.read_text()]

CONFIG = """
name = "voted"
baseline = "ttrl"
seeds = [0]

[training]
base = "{base}"
labels = "none"
prompts_per_step = 4
steps = 3
estimator = "grpo"
kl = 0.001
evaluate_every = 3
checkpoint_every = 2
held_out = 20

[allocators]
ttrl = {{ name = "ttrl", max_samples = 16, min_samples = 4 }}
optpo = {{ name = "optpo", max_samples = 16, min_samples = 4 }}
"""
pytestmark = pytest.mark.xdist_group("commands")


def write_gold(path, count=12):
    problems = problem_pool(count, seed=5)
    return write_prompts(path, problems, [problem.answer for problem in problems])


@pytest.fixture
def config(tmp_path, small_base_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "voted.toml"
    path.write_text(CONFIG.format(base=small_base_folder))
    write_gold(tmp_path / "gold.jsonl")
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("config")
def test_a_study_without_labels_plans_votes_and_reports(tmp_path):
    said = trained(tmp_path, "voted.toml", "--prompts", "gold.jsonl")
    assert "rollouts    at least 48 and at most 192 a run; 240 to 384 in all" in said
    assert "6 of 6 steps" in said
    folder = tmp_path / "runs" / "voted-gold"
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml", "environment.json", "prompts.sha256", "report.md", "summary.json",
    }  # fmt: skip
    ttrl, optpo = json.loads((folder / "summary.json").read_text())
    assert ttrl["rollouts"] == 192 > optpo["rollouts"] >= 48
    assert optpo["rollouts_saved"]["mean"] == pytest.approx(1 - optpo["rollouts"] / 192)
    report = (folder / "report.md").read_text()
    assert "| labels right |" in report and "| exact, held out |" in report
    assert "Right answers are known for all 12 prompts." in report
    records = curves(folder)
    assert {name: rows[-1]["step"] for name, rows in records.items()} == {"ttrl-seed0": 3, "optpo-seed0": 3}


def test_the_options_set_the_training_and_name_the_study(config, tmp_path):
    study = read_study(config, [], None, False, ["optpo"], "none", tmp_path / "my prompts.jsonl")
    assert study.name == "voted-my prompts-optpo"
    assert study.training.prompts == tmp_path / "my prompts.jsonl"
    assert read_study(config, [], "mine", False, (), None, tmp_path / "gold.jsonl").name == "mine"
    with pytest.raises(ConfigError, match="--resume goes on with a started study, got also --prompts gold"):
        read_study(None, [], None, True, (), "none", "gold.jsonl")


def test_the_default_study_without_labels():
    study = read_study(None, [], None, False, labels="none")
    assert study == read_study(LABEL_FREE_DEFAULT, [], None, False)
    assert study.name == "label_free" and list(study.allocators) == ["ttrl", "optpo", "posterior_predictive"]
    assert read_study(None, [], None, False, labels="gold").training.labels == "gold"


def test_what_does_not_go_together_is_refused(config):
    same = "must be the same for all allocators of a study"
    assert_refused(
        lambda given: read_study(config, given[0], None, False, *given[1:]),
        [
            ("labels must be 'none' for ttrl, got 'gold'", ([], [], "gold")),
            ("labels must be 'gold' for vip, got 'none'", ([], ["vip"], "none")),
            (r"training\.labels must be one of 'gold', 'none', got 'some'", ([], [], "some")),
            (f"steps {same}, got 5", (["trainings.optpo.steps=5"],)),
            (f"prompts {same}", (["trainings.optpo.prompts=a.csv"],)),
            ("without labels rewards come from the votes, got reward 'share'", (["training.reward=share"],)),
        ],
    )


def test_a_study_never_goes_on_with_another_file_of_prompts(config, tmp_path):
    study = read_study(config, [], None, False, (), None, tmp_path / "gold.jsonl")

    def claim_it():
        with claim(study):
            pass

    claim_it()
    claim_it()
    write_gold(tmp_path / "gold.jsonl", count=13)
    with pytest.raises(ConfigError, match=r"gold\.jsonl must be as it was when .*voted-gold was started"):
        claim_it()
    write_gold(tmp_path / "gold.jsonl")
    claim_it()


@pytest.mark.parametrize("config", STUDIES, ids=lambda path: path.stem)
def test_every_study_among_the_examples_can_be_trained(monkeypatch, capsys, config):
    monkeypatch.chdir(ROOT)
    study = read_study(Path("examples") / config.name, [], None, resume=False)
    assert run_study(study, read_pools(study), dry_run=True) == 0
    assert "expected    about " in capsys.readouterr().out
