"""The config group ``allocation``: it holds every setting, composes, and gives the allocation that it describes."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import OmegaConf

from apportion.allocators import VIP, Allocator
from apportion.baselines import BASELINES, Optimal, Predicted
from apportion.config import ConfigError
from apportion.described import described_fields
from apportion.predictors import DiscountedCounts, GaussianProcess, SentenceTransformerEmbedder, Shuffled
from apportion.predictors.lengths import MeanLengths
from apportion.presets import PRESETS
from apportion.selection import SELECTORS, Mixed, SPOWeights
from apportion.stopping import ESC
from apportion.verl.command import check_choices
from apportion.verl.configs import ALLOCATION, GROUPS, SELECTION
from apportion.verl.settings import VerlAllocation, allocation_of
from tests.verl.composed import alone, command, stock

ROOT = Path(__file__).parents[2]
N = "actor_rollout_ref.rollout.n=8"
HOLDERS = {"allocation/rule": "voting"}
"""The allocator with a setting of a group. VIP has one of all others."""


def by_default(kind):
    """An instance with all its defaults, and verl's 8 rollouts a prompt."""
    made = kind()
    return made.with_estimator("rloo").with_budget(8) if isinstance(made, Allocator) else made


def settings(kind):
    return {field.name for field in fields(kind) if field.init}


def chosen(name, *overrides):
    """Return the configuration of the group ``allocation`` and the allocation that it describes."""
    config, choices = alone(name, *overrides)
    check_choices(config, choices)
    return config, allocation_of(config)


@pytest.mark.parametrize("name", ALLOCATION.kinds)
def test_an_allocator_is_chosen_with_its_defaults_and_all_that_can_be_set_is_seen(name):
    kind = ALLOCATION.kinds[name]
    config, allocation = chosen(name)
    assert allocation == VerlAllocation(allocator=by_default(kind))
    assert set(config.allocation) == settings(VerlAllocation)
    assert set(config.allocation.allocator) == settings(kind) | {"name"}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in (SELECTION, *GROUPS) for name in group.kinds])
def test_a_choice_in_a_group_has_its_own_settings_and_no_others(group, name):
    kind, wraps = group.kinds[name], (group.field, name) == ("predictor", "shuffled")
    needed = [f"{group.key}.predictor=counts"] if wraps else []
    config, allocation = chosen(HOLDERS.get(group.path, "vip"), f"{group.path}={name}", *needed)
    assert set(OmegaConf.select(config, group.key)) == settings(kind) | {"name"}
    expected = Shuffled(DiscountedCounts()) if wraps else by_default(kind)
    assert getattr(allocation if group is SELECTION else allocation.allocator, group.field) == expected


def test_docstrings_describe_every_setting_of_every_choice():
    groups = (ALLOCATION, SELECTION, *GROUPS)
    for kind in (VerlAllocation, *BASELINES.values(), *(kind for group in groups for kind in group.kinds.values())):
        described = described_fields(kind)
        assert not [name for name in settings(kind) if not described.get(name)], f"{kind.__name__} leaves settings out"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_chosen_by_its_name_with_its_estimator(name):
    preset = PRESETS[name]()
    config, choices = command(N, f"allocation={name}")
    check_choices(config, choices)
    parts = {key: value for key, value in preset.arguments().items() if key != "estimator"}
    expected = VerlAllocation(**parts | {"allocator": preset.allocator.with_budget(8)})
    trained = f"apportion_{preset.estimator or 'rloo'}"
    assert config.algorithm.adv_estimator == trained and set(config.allocation) == settings(VerlAllocation)
    assert allocation_of(config) == expected
    if name == "singles":  # stock verl takes it, too
        by_key = stock(N, f"+allocation={{preset: {name}}}", f"algorithm.adv_estimator={trained}")
        assert allocation_of(stock(N, f"+allocation={name}")) == allocation_of(by_key) == expected


def vip(rollouts_per_prompt=8, **given):
    return VIP(estimator="rloo", rollouts_per_prompt=rollouts_per_prompt, **given)


COUNTS, HALF = DiscountedCounts(), DiscountedCounts(discount=0.5)
TOKENS = ("allocation.allocator.tokens_per_prompt=900", "allocation.allocator.lengths={initial: 100}")
TAKEN_OUT = ("~allocation.allocator.predictor", "+allocation.allocator.predictor={name: counts, discount: 0.5}")
ALLOCATORS_OF = [
    (vip(low=4), ["allocation.allocator.low=4"]),
    (vip(6), ["allocation.allocator.rollouts_per_prompt=6"]),
    (VIP(estimator="rloo", budget=512), ["allocation.allocator.budget=512"]),
    (VIP(estimator="rloo", tokens_per_prompt=900, lengths=MeanLengths(initial=100)), TOKENS),
    (vip(predictor=COUNTS), ["allocation.allocator.predictor=counts"]),
    (
        vip(predictor=GaussianProcess(SentenceTransformerEmbedder(), noise=1.0)),
        ["allocation/predictor=gp", "allocation.allocator.predictor.noise=1.0"],
    ),
    (vip(predictor=HALF), ["allocation/predictor=counts", "allocation.allocator.predictor.discount=0.5"]),
    (vip(predictor=HALF), TAKEN_OUT),
]
SELECTED = [
    (None, []),
    (Mixed(), ["allocation.selection=mixed"]),
    (Mixed(explore=0.2), ["allocation/selection=mixed", "allocation.selection.explore=0.2"]),
    (SPOWeights(predictor=COUNTS), ["allocation.selection={name: spo, predictor: counts}"]),
]
SUBTRACTED = [
    (None, ["allocation.baseline=null"]),
    (Optimal(), ["allocation.baseline=optimal"]),
    (Optimal(scope="constant"), ["allocation.baseline={name: optimal, scope: constant}"]),
    (Predicted(COUNTS), ["allocation.baseline={name: predicted, predictor: counts}"]),
]


@pytest.mark.parametrize(
    ("part", "cases"), [("allocator", ALLOCATORS_OF), ("selection", SELECTED), ("baseline", SUBTRACTED)]
)
def test_overrides_of_one_setting_a_name_or_a_table_are_what_they_say(part, cases):
    for expected, overrides in cases:
        assert getattr(chosen("vip", *overrides)[1], part) == expected, overrides
    assert chosen("voting", "allocation.allocator.rule=esc")[1].allocator.rule == ESC()


def test_a_preset_is_set_further():
    config, _ = command(N, "allocation=hora_as_printed", "allocation.allocator.high=32", "allocation/selection=mixed")
    given = allocation_of(config)
    assert (given.allocator.high, given.allocator.pre_rollouts, given.selection) == (32, 8, Mixed())
    table = stock(
        N, "+allocation={preset: {name: vip_as_printed, estimator: dr_grpo}}", "algorithm.adv_estimator=dr_grpo"
    )
    assert allocation_of(table).allocator.estimator == "dr_grpo"


REFUSED = {
    "give one of rollouts_per_prompt, budget and tokens_per_prompt, got 6.0, 512 and None": [
        *("allocation.allocator.budget=512", "allocation.allocator.rollouts_per_prompt=6")
    ],
    r"^allocation\.allocator\.predictor\.predictor must have a value": ["allocation/predictor=shuffled"],
    "choose allocation/predictor=counts instead": ["allocation.allocator.predictor.name=counts"],
    "choose allocation/predictor=counts instead;": ["allocation.allocator.predictor={name: counts}"],
    "choose allocation/selection=spo instead": ["allocation/selection=mixed", "allocation.selection.name=spo"],
    "did you mean 'vip'": ["allocation.allocator=vpi"],
}


def test_what_does_not_go_together_is_refused_with_the_way_out():
    """A changed name would keep the settings of another."""
    for message, overrides in REFUSED.items():
        with pytest.raises(ConfigError, match=message.rstrip(";")):
            chosen("vip", *overrides)
    for override, message in (
        ("allocation.allocator.name=hora allocation=vip", "choose allocation=hora instead"),
        ("algorithm.adv_estimator=grpo", "leave it out, or keep it under allocation=uniform"),
        ("allocation.preset=hora_as_printed", r"^allocation\.preset must be left out, .*; choose allocation=hora_as"),
    ):
        config, choices = command(N, *override.split())
        with pytest.raises(ConfigError, match=message):
            check_choices(config, choices)
    with pytest.raises(ConfigError, match=r"^allocation\.allocator must be left out beside a preset whose own is hora"):
        allocation_of(config)
    with pytest.raises(
        ConfigError, match=r"algorithm\.adv_estimator must be apportion_reinforce with .*, got grpo; set"
    ):
        allocation_of(stock("+allocation={preset: singles}", "algorithm.adv_estimator=grpo"))
    with pytest.raises(MissingConfigException, match=r"(?s)allocation/vpi.*ar3po.*vip"):
        command(N, "allocation=vpi")
    with pytest.raises(ConfigCompositionException, match=r"allocation\.allocator\.lwo"):
        command(N, "allocation.allocator.lwo=4")


def test_stock_verl_takes_the_same():
    ours = allocation_of(command(N, "allocation=optpo")[0])
    assert allocation_of(stock(N, "+allocation={allocator: {name: optpo}}")) == ours
    assert allocation_of(stock(N, "+allocation=optpo")) == ours
    config = stock(N, "+allocation=vip", "allocation/predictor=counts", "allocation.allocator.low=4")
    assert allocation_of(config).allocator == vip(low=4, predictor=COUNTS)


OTHER_PROGRAM = """
import sys, hydra

@hydra.main(config_path=None, version_base=None)
def main(config):
    assert config.allocation == "vip", "the value, and not our group"
    assert "apportion" not in sys.modules and "hydra_plugins.apportion" in sys.modules

sys.argv.append("+allocation=vip")
main()
"""


def test_another_program_of_hydra_is_neither_changed_nor_slowed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_lists_the_group_of_every_program_with_verls_configuration(warm, tmp_path):
    for words in (["apportion.verl"], ["verl.trainer.main_ppo"]):
        command = [warm, "-m", *words, "--help"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert f"\nallocation: {', '.join(sorted(ALLOCATION.choices))}\n" in said
        assert "\nallocation/predictor: counts, " in said
        assert f"\nallocation/selection: {', '.join(sorted(SELECTORS))}\n" in said


def test_the_settings_of_vips_paper_in_the_documents_are_its_table_9():
    text = (ROOT / "docs" / "verl.md").read_text(encoding="utf-8")
    block = text.split("## The settings of VIP's paper")[1].split("```")[1]
    config, choices = command(*block.partition("#")[0].replace("\\\n", " ").split()[4:])
    check_choices(config, choices)
    assert isinstance(allocation_of(config).allocator.predictor, GaussianProcess)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.lr_warmup_steps, actor.ppo_mini_batch_size) == (1e-6, 20, 512)
    assert (config.data.train_batch_size, rollout.n, rollout.response_length, rollout.temperature) == (512, 8, 10240, 1)
    assert actor.optim.optimizer == "AdamW" and not actor.use_kl_loss
