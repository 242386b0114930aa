"""The design of a study: which allocators, on what, over which seeds; read strictly from TOML, kept with results."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from apportion import __version__
from apportion.allocators import Allocator
from apportion.config import ConfigError, build, dump, load, to_toml
from apportion.lab.trainer import Training

DEFAULT = Path(__file__).with_name("default.toml")
RUNS = Path("runs")


@dataclass(frozen=True)
class Study:
    """Which allocators to train with, on what, how often.

    ``baseline`` names the allocator that the others are compared with, pairwise by seed; ``processes`` (0: one a core)
    run side by side; ``variance_draws`` gradients measure the variance under each allocation (0: leave that out).
    """

    name: str
    baseline: str
    allocators: dict[str, Allocator]
    training: Training = field(default_factory=Training)
    seeds: tuple[int, ...] = (0, 1, 2)
    processes: int = 0
    variance_draws: int = 60

    def __post_init__(self) -> None:
        if not self.name or Path(self.name).name != self.name:
            raise ValueError(f"name must be a plain folder name, got {self.name!r}; results go to {RUNS}/NAME")
        if self.baseline not in self.allocators:
            known = ", ".join(self.allocators)
            raise ValueError(f"baseline must be one of {known}, got {self.baseline!r}; name one of the allocators")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must be distinct integers from 0 up, got {list(self.seeds)}; list each once")
        if self.processes < 0:
            raise ValueError(f"processes must be at least 0, got {self.processes}; 0 takes every core")
        if self.variance_draws and self.variance_draws < 3:
            raise ValueError(f"variance_draws must be 0 or at least 3, got {self.variance_draws}; 0 leaves that out")
        for allocator in self.allocators.values():
            allocator.check(self.training.prompts_per_step)

    @property
    def directory(self) -> Path:
        """Where everything about the study lies."""
        return RUNS / self.name

    @property
    def runs(self) -> list[tuple[str, int]]:
        """(allocator, seed) of every run, all allocators of a seed together, so that an early stop leaves pairs."""
        return [(arm, seed) for seed in self.seeds for arm in self.allocators]

    @property
    def parallel(self) -> int:
        """How many processes run side by side."""
        return min(self.processes or _cores(), len(self.runs))


def read_study(config: Path | None, overrides: Sequence[str], name: str | None, resume: bool) -> Study:
    """The study that the command line means, checked."""
    if resume:
        if config is not None:
            raise ConfigError(f"--resume goes on with a started study, got also {config}; give --name, or no --resume")
        config = RUNS / (name or load(DEFAULT)["name"]) / "config.toml"
        if not config.exists():
            raise ConfigError(f"there is nothing to resume: {config} does not exist; start it without --resume")
    table = load(config or DEFAULT, overrides)
    return build(Study, table | ({"name": name} if name else {}))


def claim(study: Study) -> None:
    """Makes the study's folder, or makes sure that it holds this very study: runs of two configs are never mixed."""
    resolved, path = to_toml(dump(study)), study.directory / "config.toml"
    if path.exists():
        started, mine = (_without_speed(tomllib.loads(text)) for text in (path.read_text(), resolved))
        if started != mine:
            changed = ", ".join(sorted(key for key in started | mine if started.get(key) != mine.get(key)))
            raise ConfigError(
                f"{study.directory} holds another study, which differs in {changed}; "
                "choose another --name, or delete the folder"
            )
    study.directory.mkdir(parents=True, exist_ok=True)
    write_whole(path, resolved)
    write_whole(study.directory / "environment.json", json.dumps(_environment(), indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes ``text`` so that a kill or a full disk leaves the old file or the new one, never half of it."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def _without_speed(table: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in table.items() if key != "processes"}


def _environment() -> dict[str, object]:
    packages = ("numpy", "scipy", "torch", "transformers")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": _cores(),
        "apportion": __version__,
        **{package: version(package) for package in packages},
    }


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
