"""The page with a user's own loops: as they stand they learn, and a kill at any moment changes nothing."""

import asyncio
import itertools

import pytest

from tests.test_docs import BLOCK, ROOT

CODE = compile("\n".join(BLOCK.findall((ROOT / "docs" / "own_loop.md").read_text())), "own_loop.py", "exec")
STEPS = 24


class KilledError(BaseException):
    """A run that ends between two lines."""


def trained(loop, killed=None, call=None):
    """Run a ``loop`` of the page, and return the names of the page. It ends before the given ``call`` of ``killed``."""
    names = {"__name__": "own_loop"}
    exec(CODE, names)
    if killed:
        whole, calls = names[killed], itertools.count()

        def cut(*given):
            if next(calls) == call:
                raise KilledError
            return whole(*given)

        names[killed] = cut
    run = names[f"train_{loop}"](STEPS)
    if loop == "stream":
        asyncio.run(run)
    return names


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The names of a run in batches that was left alone."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        return trained("batches")


@pytest.mark.parametrize("loop", ["batches", "stream"])
def test_a_loop_that_was_killed_ends_with_the_weights_of_one_that_was_left_alone(loop, alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for killed, call in [("sampled", 75), ("train", 1), ("save", 3), ("save", 0), ("sampled", 200)]:
        with pytest.raises(KilledError):
            trained(loop, killed, call)
    assert trained(loop)["policy"].weight.equal(alone["policy"].weight)


def test_the_policy_and_its_baseline_learn(alone):
    probabilities = alone["log_probabilities"](alone["prompts"]).exp()
    assert probabilities[range(32), [row % 5 for row in range(32)]].mean() > 0.5
    assert alone["run"].baseline.predict(alone["prompts"]).min() > 0
