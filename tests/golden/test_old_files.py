"""Files that version 0.3.0 wrote load, and a byte changed in one of them is noticed."""

import json
import shutil
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from apportion import HORA, Prompt, Rollout
from apportion.allocators import ALLOCATORS, Allocator
from apportion.baselines import BASELINES
from apportion.config import build
from apportion.predictors import PREDICTORS
from apportion.records import RecordError, open_run
from apportion.scheduler import OfferedScheduler, Prompts, Rows, Scheduler
from apportion.selection import SELECTORS
from apportion.vote import revote
from apportion.vote.lines import JournalError
from tests.golden.compare import differences
from tests.golden.decisions import fed, made, plain, pool
from tests.golden.old import HERE
from tests.rules import small_settings

REMEDY = "use another"
READERS = {"allocator": "predictor", "baseline": "predictor", "selector": "_belief"}


@pytest.fixture
def old(tmp_path):
    """Return a copy of the files, which a test may change."""
    return shutil.copytree(HERE, tmp_path / "old")


def flip(path, place):
    """Change one bit of a file, at a share ``place`` of its length."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def test_the_states_of_all_learners_go_on_as_if_never_saved():
    saved_state = pytest.importorskip("apportion.engines.saved_state")
    states = saved_state.load_state(HERE / "states.pt", "golden", remedy=REMEDY)
    batches = list(fed(False))[1:4]
    registries = {"predictor": PREDICTORS, "baseline": BASELINES, "selector": SELECTORS, "allocator": ALLOCATORS}
    for title, state in states.items():
        kind, name = title.split()
        learners = [
            build(Allocator, small_settings(name)) if kind == "allocator" else made(registries[kind][name])
            for _ in range(2)
        ]
        if kind != "allocator":
            [learner.prepare(list(pool())) for learner in learners]
        lived, loaded = learners
        for batch in batches:
            getattr(lived, "update" if hasattr(lived, "update") else "observe")(batch)
        if title == "predictor empirical_bayes":
            with pytest.raises(ValueError, match="must have no embeddings"):
                loaded.load_state_dict(state)
            continue
        loaded.load_state_dict(state)
        for learner in learners:
            getattr(learner, "update" if hasattr(learner, "update") else "observe")(batches[1])
        now, then = (plain(learner.state_dict()) for learner in (lived, loaded))
        if '"outage"' not in json.dumps(now):  # floats to a tolerance: another processor adds up in another order
            assert not list(differences(then, now, f"{kind}s / {name} / state")), title
        else:  # the default belief was rewritten since then: the prior is refitted, and the drift begins anew
            beliefs = [each if kind == "predictor" else getattr(each, READERS[kind]) for each in learners]
            np.testing.assert_allclose(*[each.predict(list(pool())).mean for each in beliefs], atol=0.05, err_msg=title)


def went_on(stream, prompts):
    """Return what ``stream`` requests and trains on in 70 events, when three prompts are offered an update."""
    order, running, log = Random("stream"), [], []
    for now in range(70):
        decision = stream.decide(6 - len(running), float(100 + now))
        log += [f"{t.prompt.text} #{t.rollout}.{t.attempt} @{t.version}" for t in decision.requests]
        running += decision.requests
        if (update := decision.update) is not None:
            log.append(f"update {update.version}: {[group.rewards.tolist() for group in update.groups]}")
            stream.trained(update.version)
            if isinstance(stream, OfferedScheduler):
                for q in range(3):
                    stream.source.offer(prompts[(3 * stream.version + q) % 12].id)
        if running:
            ticket = running.pop(order.randrange(len(running)))
            draw = Random(f"{ticket.prompt.text} {ticket.rollout} {ticket.attempt} {ticket.version}").random()
            stream.arrived(ticket, None if draw < 0.1 else Rollout(draw < 0.6, tokens=7))
    return "\n".join(log)


def test_streams_go_on_as_they_did():
    saved_state = pytest.importorskip("apportion.engines.saved_state")
    prompts = [Prompt(f"prompt {q}") for q in range(12)]
    rules = [HORA(rollouts_per_prompt=5, pre_rollouts=2, high=12) for _ in range(2)]
    streams = {"stream": Scheduler(rules[0], prompts, Rows(16, 2))}
    streams["offered"] = OfferedScheduler(rules[1], prompts, Prompts(2, 2, 12))
    for name, saved in saved_state.load_state(HERE / "streams.pt", "golden", remedy=REMEDY).items():
        streams[name].load_state_dict(saved["state"])
        streams[name].restarted()
        assert went_on(streams[name], prompts) == saved["then"]


def test_a_rollout_log_is_read():
    run = open_run(HERE / "log")
    assert (run.source, len(run.asked), set(run.asked.tolist())) == ("rollout log", 20, {4})
    assert (len(run.reward), run.reward.sum(), np.bincount(run.step).tolist()) == (73, 38.0, [4, 16])


def test_a_vote_is_counted_again():
    found = {ballot.id: ballot for ballot in revote(HERE / "vote" / "answers.jsonl").ballots}
    assert {id: (each.answer, each.samples) for id, each in found.items()} == {f"q{q}": (str(q), 24) for q in range(3)}
    assert found["q1"].votes == {"1": 15, "6": 2, "5": 1, "4": 6} and found["q0"].unparsed == 1


def test_a_checkpoint_of_trl_is_loaded():
    pytest.importorskip("trl")
    import torch  # noqa: PLC0415

    from apportion.trl import checkpoints  # noqa: PLC0415

    state = checkpoints.load(HERE / "trl")
    assert (state.step, state.batches, state.sharing, state.chosen) == (2, 1, (1, 4), [[11, 3, 20, 13]])
    chunks = checkpoints.load_batch(HERE / "trl", 0, (*state.sharing, state.iterations), torch.device("cpu"), state)
    assert [tuple(chunk["completion_ids"].shape) for chunk in chunks] == [(8, 4)] * 4


@pytest.mark.parametrize("kind", ["vip", "ar3po"])
def test_a_checkpoint_of_verl_is_loaded(old, kind):
    pytest.importorskip("verl")
    from apportion.verl import checkpoints  # noqa: PLC0415
    from tests.verl.coordinator import worker_pool as pool  # noqa: PLC0415

    settings = pool.allocation(pool.ALLOCATORS[kind]().with_estimator("rloo"), None, retries=1, resume="strict")
    coordinator = pool.make_coordinator(settings, pool.WorkerPool())
    checkpoints.load_into(coordinator, old / "verl" / kind / checkpoints.FILE)
    learned = coordinator.state()["allocator"]
    assert len(learned["sums"] if kind == "vip" else learned["store"]["entries"]) == {"vip": 7, "ar3po": 18}[kind]


def test_a_run_of_the_lab_goes_on_to_its_end(old):
    pytest.importorskip("torch")
    from apportion.lab.training.trainer import Trainer  # noqa: PLC0415
    from tests.lab.training.test_trainer import RULES, settings  # noqa: PLC0415

    rule, own = RULES["mixed"]()
    training = settings(str(old / "lab" / "base"), rollout_log="none", problems=32, steps=8, **own)
    run = Trainer(training, rule, 0, old / "lab" / "run")
    assert run.run()
    steps = [json.loads(line)["step"] for line in (old / "lab" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(len(steps))) and len(steps) > 4


def test_a_state_of_tinker_is_loaded():
    pytest.importorskip("tinker_cookbook")
    from apportion.engines.saved_state import load_state  # noqa: PLC0415
    from apportion.tinker.checkpoints import KIND, state_file  # noqa: PLC0415
    from apportion.tinker.rewards import EarlierEpisode  # noqa: PLC0415

    path = state_file(SimpleNamespace(log_path=HERE / "tinker"), 4)
    state = load_state(path, KIND, remedy=REMEDY, records=(EarlierEpisode,))
    assert state.keys() == {"name", "allocator", "baseline", "selection", "settings", "drawn"}
    HORA(pre_rollouts=2, rollouts_per_prompt=4).load_state_dict(state["allocator"])


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_a_changed_bit_is_refused(old, place):
    saved_state = pytest.importorskip("apportion.engines.saved_state")
    kinds = {"states.pt": "golden", "trl/apportion.pt": "TRL run", "lab/run/checkpoint.pt": "lab run"}
    kinds |= {"verl/vip/allocation.pt": "verl run", "tinker/apportion/000004.state": "tinker-cookbook run"}
    for name, kind in kinds.items():
        flip(old / name, place)
        with pytest.raises(saved_state.SavedStateError):
            saved_state.load_state(old / name, kind, remedy=REMEDY)
    flip(old / "log" / "step-000001.parquet", place)
    with pytest.raises(RecordError):
        open_run(old / "log")
    flip(old / "vote" / "answers.samples.jsonl", place)
    with pytest.raises(JournalError):
        revote(old / "vote" / "answers.jsonl")
