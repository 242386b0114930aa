"""The design of a study: which allocators to train, on what, with which seeds. It is read strictly from TOML."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apportion.allocators import ALLOCATORS, Allocator
from apportion.allocators.votes import ConsensusAllocator
from apportion.checks import check_choice, check_least
from apportion.config import REGISTRIES, ConfigError, build, choices, dump, load
from apportion.lab.training.metrics import METRICS, read_metrics
from apportion.lab.training.pool import Pool, pool_of
from apportion.lab.training.settings import LENGTHS, Training
from apportion.presets import PRESETS, Preset
from apportion.runs.folder import (
    ENVIRONMENT,
    check_settings,
    environment_with,
    hold_folder,
    read_settings,
    usable_cores,
    write_run,
)
from apportion.runs.whole_files import is_file, write_whole
from apportion.toml import check_folder_name
from apportion.untrusted import shown

DEFAULT = Path(__file__).with_name("default.toml")
LABEL_FREE_DEFAULT = Path(__file__).with_name("label_free.toml")
RUNS = Path("runs")
SHARED = ("base", "labels", "reward", "problems", "prompts", "held_out", *LENGTHS, "evaluate_every")
"""Training settings that all arms of a study must share, because their curves are compared."""
CONFIG = "config.toml"
PROMPTS = "prompts.sha256"
FILES = (CONFIG, ENVIRONMENT, PROMPTS, "report.md", "summary.json")
"""Files in the folder of a study, apart from the lock and the folders of its runs."""
MAY_CHANGE = ("processes", "training.rollout_log")
"""Settings that may change when a study is resumed, beside the ``rollout_log`` of each of ``trainings``."""


@dataclass(frozen=True)
class Study:
    """Which allocators to train, on what, with which seeds.

    ``baseline`` names the allocator that the others are compared with, pairwise by seed. ``processes`` run side by
    side; 0 means one for each core. ``trainings`` holds the whole training of the allocators that do not use
    ``training``. A table under ``trainings`` in a config file gives only the settings that differ.
    """

    name: str
    baseline: str
    allocators: dict[str, Allocator]
    training: Training = field(default_factory=Training)
    trainings: dict[str, Training] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    processes: int = 0

    def __post_init__(self) -> None:
        check_folder_name(self.name, RUNS)
        check_choice("baseline", self.baseline, self.allocators, "name one of the allocators")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must be distinct integers from 0 up, got {list(self.seeds)}; list each once")
        check_least(self, "0 takes every core", processes=0)
        for arm, training in self.trainings.items():
            check_choice("the arm of trainings", arm, self.allocators, "rename or remove it")
            for key in SHARED:
                if getattr(training, key) != getattr(self.training, key):
                    raise ValueError(
                        f"{key} must be the same for all allocators of a study, got {getattr(training, key)!r} for "
                        f"{arm!r} and {getattr(self.training, key)!r} for the others; make two studies"
                    )
        for arm, allocator in self.allocators.items():
            self.training_of(arm).check(allocator)

    def training_of(self, arm: str) -> Training:
        """Return the training settings of one allocator's runs."""
        return self.trainings.get(arm, self.training)

    @property
    def directory(self) -> Path:
        """The folder of the study."""
        return RUNS / self.name

    def folder_of(self, arm: str, seed: int) -> Path:
        """Return the folder in which one run keeps its metrics and checkpoint."""
        return self.directory / f"{arm}-seed{seed}"

    def open_runs(self) -> list[tuple[str, int]]:
        """Return the runs that are not finished, by their metrics. Raise ConfigError if metrics are damaged."""
        try:
            last = {run: read_metrics(self.folder_of(*run) / METRICS)[-1:] for run in self.runs}
        except ValueError as error:
            raise ConfigError(str(error)) from error
        training = self.training  # the length is shared by all
        return [run for run, found in last.items() if not found or found[0][training.unit] < training.length]

    @property
    def runs(self) -> list[tuple[str, int]]:
        """(allocator, seed) of every run. Seeds come one after the other, so that an early stop leaves pairs."""
        return [(arm, seed) for seed in self.seeds for arm in self.allocators]

    @property
    def parallel(self) -> int:
        """Number of processes that run side by side."""
        return min(self.processes or usable_cores(), len(self.runs))


def read_study(
    config: Path | None,
    overrides: Sequence[str],
    name: str | None,
    resume: bool,
    allocators: Sequence[str] = (),
    labels: str | None = None,
    prompts: Path | None = None,
) -> Study:
    """Return the checked study of the command line. Raises ConfigError. The file of prompts is not read yet.

    ``allocators`` narrows the study to these and its baseline. Each is an arm of the study, or a registered allocator
    or a preset with its defaults. ``labels`` and ``prompts`` set ``training.labels`` and ``training.prompts``. Without
    ``config``, ``labels`` "none" means the default study without labels. So do allocators that learn from votes.
    """
    default = LABEL_FREE_DEFAULT if labels == "none" or _vote(allocators) else DEFAULT
    if resume:
        also = [config, *(f"--allocator {arm}" for arm in allocators), prompts and f"--prompts {prompts}"]
        if first := next(filter(None, also), None):
            raise ConfigError(f"--resume goes on with a started study, got also {first}; give --name, or no --resume")
        started = name or load(default)["name"]
        check_folder_name(started, RUNS)
        config = RUNS / started / CONFIG
        if not os.path.lexists(config):
            raise ConfigError(f"there is nothing to resume: {config} does not exist; start it without --resume")
        read_settings(config)
    given = {"labels": labels, "prompts": None if prompts is None else str(prompts)}
    options = [f"training.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    table = load(config or default, [*overrides, *options])
    if not all(isinstance(table.get(key, {}), dict) for key in ("training", "allocators", "trainings")):
        return build(Study, table)  # which refuses it
    table = _with_one_length(table, overrides)
    if prompts is not None:
        table |= {"name": f"{table.get('name', 'study')}-{prompts.stem}"}
    if allocators:
        table = _narrow(table, allocators)
    table = _without_presets(table)
    trainings = {
        arm: {**table.get("training", {}), **given} if isinstance(given, dict) else given
        for arm, given in table.get("trainings", {}).items()
    }
    return build(Study, table | ({"trainings": trainings} if trainings else {}) | ({"name": name} if name else {}))


def read_pools(study: Study) -> dict[int, Pool]:
    """Return the problems of each seed. Raises ConfigError if the file of prompts does not suit every arm.

    Arms share every setting that a pool depends on, except how many prompts a step draws.
    """
    trainings = (study.training, *study.trainings.values())
    largest = max(trainings, key=lambda training: training.prompts_per_step)
    try:
        if largest.prompts is not None:
            return dict.fromkeys(study.seeds, pool_of(largest, study.seeds[0]))
        return {seed: pool_of(largest, seed) for seed in study.seeds}
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _vote(names: Sequence[str]) -> bool:
    """Return whether all ``names`` are registered allocators, or presets, that learn from votes."""
    kinds = [ALLOCATORS.get(PRESETS[name]().allocator.name if name in PRESETS else name) for name in names]
    return bool(kinds) and all(kind is not None and issubclass(kind, ConsensusAllocator) for kind in kinds)


def _with_one_length(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the study's table. A length on the command line replaces the file's, even in another unit."""
    paths = {override.partition("=")[0].strip() for override in overrides}
    replaced = {key for key in LENGTHS if f"training.{key}" not in paths}
    if len(replaced) == len(LENGTHS):
        return table
    return table | {"training": {key: value for key, value in table["training"].items() if key not in replaced}}


def _narrow(table: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the study's table with only the baseline and the ``wanted`` allocators, and a name that lists them."""
    there, registered = table.get("allocators", {}), {**REGISTRIES[Allocator], **PRESETS}
    unknown = [arm for arm in wanted if arm not in there and arm not in registered]
    if unknown:
        raise ConfigError(
            f"--allocator must be an arm of the study, a registered allocator or a preset, got {shown(unknown[0])}; "
            f"{choices(unknown[0], {**there, **registered})}"
        )
    kept = dict.fromkeys([table.get("baseline", ""), *wanted])
    arms = {arm: there.get(arm, {"name": arm}) for arm in kept if arm}
    trainings = {arm: given for arm, given in table.get("trainings", {}).items() if arm in arms}
    name = "-".join([str(table.get("name", "study")), *dict.fromkeys(wanted)])
    return table | {"allocators": arms, "trainings": trainings, "name": name}


def _without_presets(table: dict[str, Any]) -> dict[str, Any]:
    """Return the study's table, in which presets are replaced by the decisions that they make."""
    arms, trainings = dict(table.get("allocators", {})), dict(table.get("trainings", {}))
    for arm, given in arms.items():
        name = given.get("name") if isinstance(given, dict) else given
        own = trainings.get(arm, {})
        if not isinstance(name, str) or name not in PRESETS or not isinstance(own, dict):
            continue
        decided = dump(build(Preset, given, f"allocators.{arm}"))
        arms[arm] = decided.pop("allocator")
        decided = {key: value for key, value in decided.items() if value is not None}
        if twice := decided.keys() & own.keys():
            key = sorted(twice)[0]
            raise ConfigError(
                f"trainings.{arm}.{key} must be left out with the preset {name}, which has one, got {shown(own[key])}; "
                f"leave it out, or give allocators.{arm} the name of an allocator"
            )
        if decided:
            trainings[arm] = {**decided, **own}
    return table | {"allocators": arms, "trainings": trainings}


@contextmanager
def claim(study: Study) -> Iterator[None]:
    """Make the study's folder, or check that it holds the same study, and lock it for a block.

    The folder also keeps a hash of the file of prompts, which must not change. Raises ConfigError.
    """
    directory = study.directory
    settings, prompts = dump(study), study.training.prompts
    config, fingerprint = directory / CONFIG, directory / PROMPTS
    with hold_folder(directory, "study"):
        try:
            started = [name for name in FILES if is_file(directory / name)]
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if CONFIG in started:
            remedy = "change it back, choose another --name, or delete the folder"
            may_change = (*MAY_CHANGE, *(f"trainings.{arm}.rollout_log" for arm in study.trainings))
            check_settings(directory, read_settings(config), settings, remedy, may_change)
        elif runs := sorted(path.name for path in directory.iterdir() if path.is_dir()):
            raise ConfigError(
                f"{directory} holds runs such as {runs[0]}, and {CONFIG} must say how they were started, got none; "
                "restore it, choose another --name, or delete the folder"
            )
        if prompts is not None:
            digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
            now = f"{digest}  {prompts}\n".encode()  # for ``sha256sum --check``
            if PROMPTS not in started:
                write_whole(fingerprint, now)
            elif fingerprint.read_bytes() != now:
                raise ConfigError(
                    f"{prompts} must be as it was when {directory} was started, got SHA-256 {digest:.12}; "
                    "restore it, or choose another --name"
                )
        write_run(config, settings, environment_with(("numpy", "scipy", "torch", "transformers")))
        yield
