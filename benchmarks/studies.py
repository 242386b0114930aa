"""Train a study of the lab, or go on with it, and read its runs."""

from collections.abc import Mapping, Sequence

from apportion.lab.command import run_study
from apportion.lab.report.results import Run
from apportion.lab.study.design import read_pools, read_study

Runs = Mapping[str, Sequence[Run]]
"""The runs of every arm, seeds in order."""


def trained(config, overrides=(), name=None):
    """Train the runs of a study that have not ended, and return it with all its runs."""
    study = read_study(config, overrides, name, resume=False)
    if code := run_study(study, read_pools(study), dry_run=False):
        raise SystemExit(code)
    return study, runs_of(study)


def runs_of(study):
    """Return the runs of a study that has ended."""
    return {arm: [Run.read(study.folder_of(arm, seed)) for seed in study.seeds] for arm in study.allocators}
