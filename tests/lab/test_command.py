"""Studies by command, in real processes, on the small base."""

from pathlib import Path

import pytest

from apportion.config import ConfigError
from apportion.lab.study.design import DEFAULT, claim, read_study
from apportion.presets import PRESETS
from apportion.runs.folder import hold_lock
from tests.cases import assert_refused, refuse_lines
from tests.commands import printed
from tests.lab.states import STUDY, curves

ROOT = Path(__file__).resolve().parents[2]

HORA = 'hora = { name = "hora", pre_rollouts = 2, rollouts_per_prompt = 4, high = 12 }\n'

pytestmark = pytest.mark.xdist_group("commands")  # one worker process, so that the whole study runs once


@pytest.fixture
def config(tmp_path, small_base_folder):
    path = tmp_path / "quick.toml"
    path.write_text(STUDY.format(base=small_base_folder) + HORA)
    return path


@pytest.mark.slow
def test_a_study_plans_trains_reports_and_is_not_repeated(whole, monkeypatch):
    """A finished run needs no checkpoint."""
    working_directory, said = whole
    assert "2: 2 allocators x 1 seeds" in said
    folder = working_directory / "runs" / "quick"
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml", "environment.json", "report.md", "summary.json",
    }  # fmt: skip
    assert "| vip " in (folder / "report.md").read_text()
    before = curves(folder)
    assert {name: rows[-1]["rollouts"] for name, rows in before.items()} == dict.fromkeys(before, 320)
    for checkpoint in folder.rglob("checkpoint.pt"):
        checkpoint.unlink()
    report = folder / "report.md"
    whole_report = report.read_text()
    report.unlink()
    monkeypatch.chdir(working_directory)
    printed("lab", "quick.toml")
    assert curves(folder) == before and report.read_text() == whole_report


def test_dry_run_shows_the_plan_and_touches_nothing(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = printed("lab", config, "--dry-run", "--set", "seeds=[4]")
    assert "rollouts    320 a run, 960 in all" in said and "3 allocators x 1 seeds" in said
    assert not (tmp_path / "runs").exists()


def test_a_wrong_config_is_refused_before_anything_is_paid_for(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = """
        training.learnin_rate=1             => learning_rate
        training.rollouts='many'            => training.rollouts
        training.tokens=2|training.steps=3  => ends by one of rollouts, tokens, steps, got 2 tokens and 3 steps
        baseline=unifrom                    => baseline must be one of
        seeds=[1,1]                         => seeds must be distinct
        name='../elsewhere'                 => plain folder name
        allocators.vip.budget=50            => give one of rollouts_per_prompt, budget and
        allocators.vip.predictor=gpp        => gp
        allocators.vip={name='vip', budget=20} => between 24 and 512 for 8 prompts, got 20
        training.base=hardest               => base must be
        trainings.vip.rollouts=64           => rollouts must be the same for all allocators of .*, got 64 for 'vip'
        trainings.vpi.kl=0.1                => the arm of trainings must be one of uniform, vip, hora, got 'vpi'
        training.reward=share               => reward must be 'exact' for vip, which needs binary rewards, got 'share'
        training.reward=fair                => training.reward must be one of 'exact', 'share', got 'fair'
        training.rollout_log=all            => training.rollout_log must be one of 'full', 'hashes'.*'none', got 'all'
        training.weighting=word             => weighting must be one of 'prompt', 'rollout', 'token', got 'word'
        trainings.vip.learnin_rate=1        => trainings.vip .* has no key 'learnin_rate'
        trainings.vip.estimator=reinforce   => trainings.vip: a baseline goes with the estimator
    """
    refuse_lines(lambda overrides: read_study(config, overrides.split("|"), None, resume=False), wrong)
    assert not (tmp_path / "runs").exists()


def test_a_file_in_which_a_number_stands_for_a_table_is_refused(tmp_path):
    def read(text, *allocators):
        (tmp_path / "study.toml").write_text(f'name = "a"\nbaseline = "u"\n{text}')
        return read_study(tmp_path / "study.toml", [], None, False, allocators)

    arms, own = '\n[allocators]\nu = "uniform"', "\n[trainings.u]\nkl = 0.1"
    assert_refused(
        lambda given: read(*given),
        [
            ("allocators must be a table, got 3; write", ("allocators = 3", "hora")),
            ("trainings must be a table, got 3; write", (f"trainings = 3{arms}",)),
            ("trainings must be a table, got 3; write", (f"trainings = 3{arms}", "hora")),
            ("training must be a table, got 3; write", (f"training = 3{arms}{own}",)),
        ],
    )


@pytest.mark.parametrize(("unit", "length"), [("rollouts", 64), ("tokens", 900), ("steps", 3)])
def test_a_length_that_is_overridden_takes_the_place_of_the_files(tmp_path, config, monkeypatch, unit, length):
    monkeypatch.chdir(tmp_path)
    training = read_study(config, [f"training.{unit}={length}"], None, resume=False).training
    assert training.length == length and training.unit == unit.removesuffix("s" if unit == "steps" else "")


def test_an_allocator_may_train_by_settings_of_its_own(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["trainings.hora.estimator=reinforce", "trainings.hora.baseline=optimal", "training.kl=0.1"]
    study = read_study(config, overrides, None, resume=False)
    with claim(study):
        pass
    resumed = read_study(None, [], "quick", resume=True)
    for each in (study, resumed):
        hora = each.training_of("hora")
        assert (hora.estimator, hora.baseline.name, hora.kl, hora.rollouts) == ("reinforce", "optimal", 0.1, 320)
        assert each.training_of("vip") == each.training
        assert each.training.estimator == "rloo"


def test_the_command_line_narrows_a_study_to_an_allocator_and_the_baseline(config, monkeypatch):
    study = read_study(config, [], None, False, ["hora", "ar3po"])
    assert list(study.allocators) == ["uniform", "hora", "ar3po"]
    assert study.allocators["hora"].pre_rollouts == 2
    assert study.allocators["ar3po"].name == "ar3po"
    assert study.name == "quick-hora-ar3po"
    assert read_study(config, ["trainings.vip.kl=0.1"], None, False, ["hora"]).trainings == {}
    with pytest.raises(ConfigError, match=r"--allocator must be an arm .* got 'hroa'; did you mean 'hora'"):
        read_study(config, [], None, False, ["hroa"])
    with pytest.raises(ConfigError, match="--resume goes on with a started study, got also --allocator hora"):
        read_study(None, [], "quick", True, ["hora"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_an_arm_by_its_name_with_its_own_training(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study, decided = read_study(None, [], None, False, [name]), PRESETS[name]().arguments()
    training = study.training_of(name)
    assert study.training.labels == ("gold" if PRESETS[name]().allocator.needs.labels else "none")
    assert study.allocators[name] == decided.pop("allocator") and study.name.endswith(f"-{name}")
    assert training.estimator == (decided.pop("estimator", None) or study.training.estimator)
    assert all(getattr(training, key) == value for key, value in decided.items())
    with claim(study):
        pass
    assert read_study(None, [], study.name, resume=True) == study


def test_a_preset_in_a_study_has_settings_and_is_decided_once(config):
    arm = 'allocators.own={name = "vip_as_printed", estimator = "dr_grpo", rollouts_per_prompt = 8}'
    study = read_study(config, [arm, "trainings.own.kl=0.1"], None, False)
    assert study.allocators["own"].rollouts_per_prompt == 8
    assert (study.training_of("own").estimator, study.training_of("own").kl) == ("dr_grpo", 0.1)
    with pytest.raises(
        ConfigError, match=r"^trainings\.own\.estimator must be left out with the preset vip_as_printed"
    ):
        read_study(config, [arm, "trainings.own.estimator=rloo"], None, False)
    with pytest.raises(ConfigError, match=r"^allocators\.own \(vip_as_printed\) has no key 'low'"):
        read_study(config, [arm, "allocators.own.low=4"], None, False)


def test_two_studies_are_never_mixed(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def claim_with(*overrides, name=None):
        with claim(read_study(config, overrides, name, resume=False)):
            pass

    claim_with()
    before = (tmp_path / "runs" / "quick" / "config.toml").read_text()
    with pytest.raises(ConfigError, match=r"was started with seeds = \[0\], got \[1\]; change it back"):
        claim_with("seeds=[1]")
    assert (tmp_path / "runs" / "quick" / "config.toml").read_text() == before
    claim_with("processes=1")
    claim_with("seeds=[1]", name="other")


def test_a_study_that_another_process_starts_is_not_written_to(tmp_path, config, monkeypatch):
    """The lock is taken first, so two processes that start one study cannot both write its settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "quick").mkdir(parents=True)
    with (
        hold_lock(tmp_path / "runs" / "quick" / "lock"),
        pytest.raises(ConfigError, match="one process trains a study at a time"),
        claim(read_study(config, [], None, resume=False)),
    ):
        pass
    assert [path.name for path in (tmp_path / "runs" / "quick").iterdir()] == ["lock"]


def test_nothing_to_resume_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"nothing to resume: runs/hard/config\.toml"):
        read_study(None, [], None, resume=True)


def test_the_default_study_holds_the_tuned_uniform_and_every_control():
    study = read_study(DEFAULT, [], None, resume=False)
    assert study.baseline == "uniform_4"
    uniform, vip, single = {"uniform_4", "uniform_8"}, {"vip", "vip_shuffled"}, {"single_optimal", "single_zero"}
    assert study.allocators.keys() == uniform | vip | {"hora", "ar3po"} | single
    assert study.allocators["vip"].predictor.name == "gp"
    assert len(study.seeds) >= 3
