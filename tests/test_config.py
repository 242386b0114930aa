import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import OptPO, Voting
from apportion.allocators import ALLOCATORS, VIP, Allocator, Uniform
from apportion.config import ConfigError, build, dump, to_toml
from apportion.predictors import (
    DiscountedCounts,
    Embedder,
    GaussianProcess,
    PrecomputedEmbeddings,
    Predictor,
    SentenceTransformerEmbedder,
)
from apportion.stopping import RULES, PosteriorPredictive, Rule
from tests.cases import check_all, lines


@dataclass(frozen=True)
class Optimiser:
    learning_rate: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.98)

    def __post_init__(self):
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}; 1e-3 is usual")


@dataclass(frozen=True)
class Job:
    model: str
    arms: dict[str, Allocator]
    optimiser: Optimiser = Optimiser()
    estimator: Literal["rloo", "dr_grpo"] = "rloo"
    steps: int = 10
    quick: bool = False
    limit: float | None = None
    folder: Path = Path("runs")
    range: tuple[int, str] = (1, "a")
    probe: Predictor | None = None
    embedder: Embedder | None = None
    stages: list[Optimiser] = field(default_factory=list)


def job(**settings):
    return build(Job, {"model": "tiny", "arms": {"main": "uniform"}, **settings}, "job")


def arm(**settings):
    return job(arms={"main": settings}).arms["main"]


def test_nested_tables_become_dataclasses():
    table = """
    model = "tiny"
    range = [3, "b"]
    folder = "out/there"
    probe = "counts"
    [optimiser]
    learning_rate = 1
    [[stages]]
    betas = [0.5]
    [arms.plain]
    name = "uniform"
    [arms.paper]
    name = "vip"
    low = 4
    predictor = { name = "gp", clip = 0.1, embedder = { name = "sentence_transformer", batch_size = 8 } }
    """
    embedder = SentenceTransformerEmbedder(batch_size=8)
    assert build(Job, tomllib.loads(table)) == Job(
        model="tiny",
        arms={"plain": Uniform(), "paper": VIP(low=4, predictor=GaussianProcess(embedder, clip=0.1))},
        optimiser=Optimiser(learning_rate=1.0),
        folder=Path("out/there"),
        range=(3, "b"),
        probe=DiscountedCounts(),
        stages=[Optimiser(betas=(0.5,))],
    )


def test_an_integer_is_converted_to_a_float():
    assert type(job(limit=2).limit) is float


def test_a_name_alone_means_the_default_settings():
    for name, kind in ALLOCATORS.items():
        assert build(Allocator, {"name": name}) == arm(name=name) == job(arms={"main": name}).arms["main"] == kind()
    for name, rule in RULES.items():
        assert build(Rule, {"name": name}) == rule() and arm(name="voting", rule=name) == Voting(rule())
    assert job(probe="gp").probe.embedder == SentenceTransformerEmbedder()  # the paper's


def test_an_allocator_without_labels_is_set_in_toml():
    table = """
    model = "tiny"
    [arms]
    voting = { name = "voting", rule = { name = "posterior_predictive", eps = 0.02 }, max_samples = 32, wave = 4 }
    optpo = { name = "optpo", min_samples = 16, wave = "free", reward = "vote_share" }
    """
    assert build(Job, tomllib.loads(table)).arms == {
        "voting": Voting(PosteriorPredictive(eps=0.02), max_samples=32, wave=4),
        "optpo": OptPO(min_samples=16, reward="vote_share"),
    }


def refused(make, *parts):
    with pytest.raises(ConfigError) as caught:
        make()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


WRONG = """
    modle = 1                     => job (Job) | 'modle' | did you mean 'model'? | arms, optimiser
    optimiser = {lr = 1}          => job.optimiser | 'lr' | use one of learning_rate, betas
    steps = "3"                   => job.steps must be an integer, got '3' | steps = 3
    steps = 3.0                   => job.steps must be an integer, got 3.0
    steps = true                  => job.steps must be an integer, got True
    limit = "0.1"                 => job.limit must be a number, got '0.1'
    limit = true                  => job.limit must be a number, got True
    limit = nan                   => job.limit must be a number, got nan; write one
    quick = 1                     => job.quick must be true or false, got 1
    quick = "True"                => job.quick must be true or false, got 'True' | quick = true
    model = 3                     => job.model must be a string, got 3
    folder = 3                    => job.folder must be a path | got 3
    estimator = "dr_gpro"         => job.estimator must be one of 'rloo', 'dr_grpo' | "dr_grpo"
    estimator = 3                 => job.estimator must be one of 'rloo', 'dr_grpo', got 3
    range = [1]                   => job.range must have 2 entries, got 1
    range = ["a", 1]              => job.range[0] must be an integer, got 'a'
    range = 3                     => job.range must be an array, got 3
    optimiser = 3                 => job.optimiser must be a table, got 3
    optimiser = {betas = [0.1, "x"]}      => job.optimiser.betas[1] must be a number, got 'x'
    optimiser = {learning_rate = -1}      => job.optimiser.learning_rate must be above 0, got -1
    stages = [{}, {learning_rate = 0}]    => job.stages[1].learning_rate must be above 0
    arms = ["vip"]                => job.arms must be a table, got ['vip']
    arms.a = 3                    => job.arms.a must be a table, got 3
    arms.a = "vpi"                => job.arms.a (allocator) | 'vpi' | did you mean 'vip'? | uniform
    arms.a = {low = 3}            => job.arms.a (allocator) must have a name, got low | vip | hora | ar3po | optpo
    arms.a = {name = 3}           => job.arms.a (allocator) | got 3
    arms.a = {name = "vip", low = 2}            => job.arms.a.low must be at least 3 | got 2
    arms.a = {name = "vip", low = 3, high = 2}  => job.arms.a.high must be at least
    arms.a = {name = "voting", rule = "optop"}  => job.arms.a.rule (rule) | 'optop' | 'optpo'? | esc
    arms.a = {name = "voting", rule = {name = "esc", window = 1}} => job.arms.a.rule.window must be
    arms.a = {name = "voting", rule = 3}        => job.arms.a.rule must be a table, got 3
    arms.a = {name = "optpo", wave = "fre"}     => a.wave must be an integer or one of 'free', got 'fre'
    arms.a = {name = "optpo", reward = 3}       => job.arms.a.reward must be a string, got 3
    arms.a = {name = "ttrl", reward = "x"}      => job.arms.a.reward must be one of agreement, vote_share
    arms.a = {name = "ttrl", min_samples = 99}  => job.arms.a.min_samples | got 99 and 64
    probe = "zzz"                 => job.probe (predictor) | 'zzz' | gp | uniform | counts
    probe = {name = "gp", embedder = "sentence_transfomer"} => job.probe.embedder | 'sentence_transformer'?
    embedder = "precomputed"      => job.embedder must have embeddings
    embedder = {name = "precomputed", embeddings = {a = [1.0]}} => cannot be set in TOML
"""


def test_a_wrong_setting_is_refused_with_its_path_and_a_remedy():
    def check(settings, parts):
        assert "; " in refused(lambda: job(**tomllib.loads(settings)), *parts.split(" | "))

    check_all(check, lines(WRONG))


def test_all_missing_keys_are_reported_together():
    refused(lambda: build(Job, {"steps": 3}), "the configuration must have model, arms, got steps")


def test_another_name_for_a_fixed_class_is_refused():
    refused(lambda: build(VIP, {"name": "hora"}), "name must be 'vip' here, got 'hora'")


def test_a_long_value_is_shortened_in_the_error():
    assert len(refused(lambda: job(steps="x" * 10_000))) < 200


def test_what_toml_cannot_hold_is_refused_by_dump():
    array = PrecomputedEmbeddings({"a": np.ones(2)})
    refused(lambda: dump(GaussianProcess(array)), "embedder.embeddings.a must be something that TOML can hold")
    refused(lambda: dump(GaussianProcess(lambda prompts: np.ones((len(prompts), 1)))), "embedder must be")
    told = refused(lambda: dump(Voting(reward=lambda rollouts, label: [0.0] * len(rollouts))), "; leave it to Python")
    assert told.startswith("reward must be something that TOML can hold, got <function")
    job_without = Job("tiny", {}, steps=None)
    refused(lambda: dump(job_without), "steps must be something that TOML can hold, got None")


positive = st.floats(1e-9, 1e9)
text = st.text(max_size=8)
embedders = st.builds(SentenceTransformerEmbedder, model=st.text(min_size=1, max_size=8), cache_dir=st.none() | text)
predictors = st.builds(GaussianProcess, embedder=embedders, bandwidth=st.none() | positive)
rules = st.builds(PosteriorPredictive, eps=st.floats(0.001, 0.5))
allocators = st.one_of(
    st.sampled_from([rule() for rule in ALLOCATORS.values()]),
    st.builds(VIP, rollouts_per_prompt=st.floats(5, 30) | st.integers(5, 30), predictor=predictors),
    st.builds(Voting, rules, wave=st.integers(1, 99) | st.just("free")),
)
optimisers = st.builds(
    Optimiser, learning_rate=positive, betas=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple)
)
jobs = st.builds(
    Job,
    model=text,
    arms=st.dictionaries(text, allocators, max_size=3),
    optimiser=optimisers,
    estimator=st.sampled_from(["rloo", "dr_grpo"]),
    steps=st.integers(-(2**63) + 1, 2**63 - 1),
    quick=st.booleans(),
    limit=st.none() | st.floats(allow_nan=False),
    folder=text.map(Path),
    range=st.tuples(st.integers(-(2**63) + 1, 2**63 - 1), text),
    probe=st.none() | predictors,
    embedder=st.none() | embedders,
    stages=st.lists(optimisers, max_size=2),
)


@given(jobs)
def test_settings_survive_a_round_trip_through_toml(job):
    assert build(Job, tomllib.loads(to_toml(dump(job)))) == job
    assert build(Job, dump(job)) == job
