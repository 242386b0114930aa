"""A job says that its base is trained first, and shows how far that is."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from apportion.lab.policy import job_source


class Shown:
    """A display that counts the trainings of a base, and the steps that they report."""

    def __init__(self):
        self.steps = []

    @contextmanager
    def base_training(self):
        yield lambda step, of, loss: self.steps.append((step, of))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_a_base_that_must_be_trained_is_shown_while_it_is(monkeypatch, trained, shown):
    def folder(base, progress=None):
        if progress is not None:
            progress(1, 2, 0.5)
        return Path(base)

    monkeypatch.setattr(job_source, "is_trained", lambda base: trained)
    monkeypatch.setattr(job_source, "policy_folder", folder)
    display = Shown() if shown else None
    assert job_source.LabModel("easy").folder(display) == Path("easy")
    assert (display is not None and display.steps == [(1, 2)]) == (shown and not trained)
