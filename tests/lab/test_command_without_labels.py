"""Studies without labels by command, in real processes, on the small base and a file of prompts."""

import json
from pathlib import Path

import pytest

from apportion.config import ConfigError
from apportion.lab.command import run_study
from apportion.lab.study.design import LABEL_FREE_DEFAULT, claim, read_pools, read_study
from apportion.lab.world.task import problem_pool
from tests.builders import LABEL_FREE
from tests.cases import assert_refused
from tests.lab.states import curves, write_prompts
from tests.lab.test_command import ROOT, run

STUDIES = [path for path in sorted((ROOT / "examples").glob("*.toml")) if "[allocators." in path.read_text()]

CONFIG = """
name = "voted"
baseline = "ttrl"
seeds = [0]

[training]
base = "{base}"
labels = "none"
prompts_per_step = 4
steps = 6
estimator = "grpo"
kl = 0.001
evaluate_every = 3
checkpoint_every = 2
held_out = 20

[allocators]
ttrl = {{ name = "ttrl", max_samples = 16, min_samples = 4 }}
optpo = {{ name = "optpo", max_samples = 16, min_samples = 4 }}
"""
JUDGED = {
    "labels",
    "labels_right",
    "false_consensus",
    "mean_16",
    "pass_16",
    "pass_1",
    "maj_16",
}

pytestmark = pytest.mark.xdist_group("commands")


def write_gold(path, count=12):
    problems = problem_pool(count, seed=5)
    return write_prompts(path, problems, [problem.answer for problem in problems])


def write_study(folder, base):
    (folder / "voted.toml").write_text(CONFIG.format(base=base))
    write_gold(folder / "gold.jsonl")
    write_prompts(folder / "bare.jsonl", problem_pool(12, seed=5))
    return folder / "voted.toml"


@pytest.fixture
def config(tmp_path, small_base_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_study(tmp_path, small_base_folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_base_folder):
    """Return the folder of a finished study on prompts with gold and the output of its command."""
    folder = tmp_path_factory.mktemp("voted")
    write_study(folder, small_base_folder)
    done = run(folder, "voted.toml", "--prompts", "gold.jsonl")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_a_study_without_labels_plans_votes_and_reports(whole):
    working_directory, said = whole
    assert "12 for training from gold.jsonl, 4 a step; 20 held out; no labels; gold of 12 is for the report" in said
    assert "steps       6 a run" in said
    assert "rollouts    at least 96 and at most 384 a run; 480 to 768 in all" in said
    assert "12 of 12 steps" in said
    folder = working_directory / "runs" / "voted-gold"
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml", "environment.json", "prompts.sha256", "report.md", "summary.json",
    }  # fmt: skip
    ttrl, optpo = json.loads((folder / "summary.json").read_text())
    assert ttrl["rollouts"] == 384 > optpo["rollouts"] >= 96
    assert optpo["rollouts_saved"]["mean"] == pytest.approx(1 - optpo["rollouts"] / 384)
    report = (folder / "report.md").read_text()
    assert "| labels right |" in report and "| exact, held out |" in report
    assert "Right answers are known for all 12 prompts." in report
    records = curves(folder)
    assert {name: rows[-1]["step"] for name, rows in records.items()} == {"ttrl-seed0": 6, "optpo-seed0": 6}


@pytest.mark.slow
def test_without_gold_it_learns_the_very_same_and_reports_votes_and_drift(whole, config, tmp_path):
    done = run(tmp_path, "voted.toml", "--prompts", "bare.jsonl")
    assert done.returncode == 0, done.stderr
    assert "no labels; no gold, so no accuracy in the report" in done.stdout
    assert "No right answer is given for the 12 prompts, so only votes and drift are shown." in done.stdout
    bare, gold = (
        curves(folder, without=JUDGED)
        for folder in (tmp_path / "runs" / "voted-bare", whole[0] / "runs" / "voted-gold")
    )
    assert bare == gold
    assert any(row.get("grad_norm", 0) > 0 for row in bare["optpo-seed0"])


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
    assert (study.name, study.baseline, study.seeds) == ("label_free", "ttrl", (0, 1, 2))
    training, arms = study.training, study.allocators
    assert (training.base, training.problems, training.steps, training.kl) == ("medium", 256, 60, 0.001)
    assert list(arms) == ["ttrl", "optpo", "posterior_predictive"]
    assert {(arm.min_samples, arm.max_samples, arm.retain) for arm in arms.values()} == {(16, 64, "first")}
    assert arms["posterior_predictive"].stopping.rule.name == "posterior_predictive"
    assert read_study(None, [], None, False, labels="gold").training.labels == "gold"


def test_every_rule_without_labels_can_be_trained_by_its_name(config):
    for name in LABEL_FREE:
        assert read_study(None, [], None, False, [name], "none").allocators[name].name == name


def test_what_does_not_go_together_is_refused(config):
    same = "must be the same for all allocators of a study"
    assert_refused(
        lambda given: read_study(config, given[0], None, False, *given[1:]),
        [
            ("labels must be 'none' for ttrl, got 'gold'", ([], [], "gold")),
            ("labels must be 'gold' for vip, got 'none'", ([], ["vip"], "none")),
            (r"training\.labels must be one of 'gold', 'none', got 'some'", ([], [], "some")),
            (f"steps {same}, got 3", (["trainings.optpo.steps=3"],)),
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
