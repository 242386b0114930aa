"""The sampler of a selection in the data loader that verl makes."""

import pytest
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.v1 import trainer_base

from apportion.verl import sampler
from apportion.verl.sampler import ChosenRows

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # verl's loader, of torchdata

ROWS, BATCH = 10, 4


@pytest.fixture
def asked(monkeypatch):
    """The choices so far, by the number of rows. Choice k is of rows 4 k to 4 k + 3, modulo 10."""
    requests = []

    def choose(rows):
        requests.append(rows)
        return [(BATCH * (len(requests) - 1) + i) % ROWS for i in range(BATCH)]

    monkeypatch.setattr(ChosenRows, "choose", staticmethod(choose))
    return requests


def loader(size=BATCH):
    """Return a loader as verl makes it, for batches of ``size`` rows."""
    data = list(range(ROWS))
    return StatefulDataLoader(
        dataset=data, batch_size=size, num_workers=0, drop_last=True, collate_fn=list, sampler=ChosenRows(data)
    )


def test_a_batch_is_chosen_when_it_is_needed_and_choices_do_not_end_with_an_epoch(asked):
    batches = iter(loader())
    assert asked == []
    assert next(batches) == [0, 1, 2, 3] and asked == [ROWS]
    assert [next(batches)[0] for _ in range(7)] == [4, 8, 2, 6, 0, 4, 8]
    asked.clear()
    rows = iter(loader(size=1))  # asks once for a training batch, too
    assert [next(rows) for _ in range(6)] == [[0], [1], [2], [3], [4], [5]]
    assert len(asked) == 2


@pytest.mark.parametrize(("size", "taken"), [(1, 0), (1, 3), (BATCH, 1)])
def test_a_loader_that_is_restored_repeats_and_loses_nothing(asked, size, taken):
    whole = loader(size)
    batches = iter(whole)
    for _ in range(taken):
        next(batches)
    state = whole.state_dict()
    before = len(asked)
    rest = [next(batches) for _ in range(5)]
    restored = loader(size)
    restored.load_state_dict(state)
    del asked[before:]
    again = iter(restored)
    assert len(asked) == before
    assert [next(again) for _ in range(5)] == rest


def test_the_state_of_another_sampler_is_refused(asked):
    with pytest.raises(ValueError, match=r"the sampler of a selection.* must have rest, got generator, yielded"):
        ChosenRows(range(ROWS)).load_state_dict({"generator": 0, "yielded": 3})
    with pytest.raises(ValueError, match="rest must be a list of rows below 10"):
        ChosenRows(range(ROWS)).load_state_dict({"rest": [10]})


def test_without_a_manager_nobody_can_choose():
    with pytest.raises(RuntimeError, match="once an agent-loop manager was created"):
        next(iter(loader()))


def test_it_replaces_verls_sampler(monkeypatch):
    monkeypatch.setattr(trainer_base, "create_rl_sampler", trainer_base.create_rl_sampler)
    monkeypatch.setattr(ChosenRows, "installed", False)
    data = OmegaConf.create({"train_batch_size": ROWS, "shuffle": False, "max_prompt_length": 7})
    for selected in (True, False, True):
        sampler.install(selected)
        assert ChosenRows.installed == selected
        made = trainer_base.create_rl_sampler(data, range(ROWS))
        assert isinstance(made, ChosenRows) == selected
        assert selected or list(made) == list(range(ROWS))
        with pytest.raises(ValueError, match=r"must have the 10 prompts .* got 9 after those above .*length=7"):
            trainer_base.create_rl_sampler(data, range(ROWS - 1))
