"""A training job as one TOML file describes it: model, questions, verifier, allocator, and TRL's own settings.

    model = "Qwen/Qwen2.5-Math-1.5B"
    [data]
    name = "dapo_math_17k"
    [allocator]
    name = "hora"

A model or a data set may also be one of the lab, such as "lab:medium".
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from apportion.advantages import Weighting
from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.config import ConfigError, build, dump, load
from apportion.data import Data
from apportion.engines.decisions import UNDECIDED, take_preset
from apportion.presets import Preset
from apportion.records import ROLLOUTS
from apportion.runs.folder import read_settings
from apportion.selection import Selector
from apportion.toml import check_folder_name
from apportion.trl.failures import STOP, FailedRewards
from apportion.trl.settings import TRLAllocation
from apportion.user_functions import import_function
from apportion.verifiers import Verifier

RUNS = Path("runs")
FILE, CHECKPOINTS = "job.toml", "checkpoints"
LAB = "lab:"
"""What names of the lab's models and problems begin with."""

ID = "id"
"""The column of a question's id."""

RATE = "rate"
"""The column of a question's known success rate."""


@dataclass(frozen=True, kw_only=True)
class JobAllocation(TRLAllocation):
    """The trainer's settings of a job. Its evaluation may read those of votes, and its template chooses ``extract``."""

    idle = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train, on what, and how.

    Args:
        name: the folder of the results under runs/.
        model: an id of the Hugging Face hub, a local folder, or a base of the lab.
        data: the questions and their template.
        preset: a method with its allocator, estimator, baseline and selection, one of ``apportion.presets``.
        allocator: any allocator, with labels or without. A preset has one.
        algorithm: which of TRL's trainers.
        weighting, estimator, baseline, selection, equivalence, failed_rewards: as the trainer takes them. Known rates
            are in the ``rate_column`` of the data. ``equivalence`` also decides which answers are one vote in Maj@k of
            the evaluation.
        extract: without labels, where the answer is: one of ``apportion.answers.EXTRACTORS``, by default that of the
            template, or a function of the completion, as "module:function" or "file.py:function".
        verifier: what gives rewards; by default that of the named data set, else math. Without labels the default is
            none, and a verifier that is given is only reported.
        verdict: the verifier's name if its verdicts are not just 0 and 1; a verdict above 0 then counts as right.
        tools: functions that the model may call, each as "module:function" or "file.py:function".
        evaluation: questions that are not trained on, with the template of ``data`` unless they have their own. TRL's
            ``num_generations_eval`` is the k of Mean@k, Pass@k and Maj@k.
        training: settings of ``trl.GRPOConfig`` or ``trl.RLOOConfig``.
        lora: settings of ``peft.LoraConfig``, to train an adapter instead of the whole model.
    """

    name: str
    model: str
    data: Data
    preset: Preset | None = None
    allocator: Allocator = UNDECIDED
    algorithm: Literal["grpo", "rloo"] = "grpo"
    weighting: Weighting | None = None
    estimator: str | None = None
    baseline: Baseline | None = None
    selection: Selector | None = None
    failed_rewards: FailedRewards = STOP
    extract: str | None = None
    equivalence: str = "exact"
    verifier: Verifier | None = None
    verdict: str | None = None
    tools: tuple[str, ...] = ()
    evaluation: Data | None = None
    training: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_folder_name(self.name, RUNS)
        take_preset(self)  # so that the job's file in its folder has all decisions
        if self.tools and self.algorithm == "rloo":
            raise ValueError(
                f"tools are for grpo, got {', '.join(self.tools)} with rloo, whose trainer in TRL has none; set "
                'algorithm = "grpo" and estimator = "rloo"'
            )
        self.tool_functions  # noqa: B018 - raises now if a tool does not exist
        self.allocation  # noqa: B018 - raises now if settings do not fit together
        if self.evaluation is None:
            return
        if self.judge is None:
            raise ValueError(
                f"an evaluation needs a verifier, got none with {self.allocator.name}; add one, it is never trained "
                "on, or leave the evaluation out"
            )
        other = replace(self.data, template=self.evaluation_data.template).make_verifier(self.verifier)
        if other != self.judge:
            raise ValueError(
                f"one verifier must read answers to both templates, got {self.data.chosen_template.name!r} to train "
                f"and {self.evaluation.chosen_template.name!r} to evaluate; leave evaluation.template out, or set "
                "verifier.extract"
            )

    @property
    def directory(self) -> Path:
        """The folder of everything about the job."""
        return RUNS / self.name

    @cached_property
    def judge(self) -> Verifier | None:
        """The verifier of completions; None without labels if none is named. The caller closes it."""
        return None if self.allocation.label_free and self.verifier is None else self.data.make_verifier(self.verifier)

    @property
    def evaluation_data(self) -> Data:
        """The questions of the evaluation, with their template."""
        assert self.evaluation is not None
        template = self.evaluation.template or self.data.template or self.data.chosen_template.name
        return replace(self.evaluation, template=template)

    @cached_property
    def allocation(self) -> TRLAllocation:
        """The trainer's settings besides TRL's own. Raises ValueError if they do not fit together."""
        named = self.data.chosen_template.extractor if self.extract is None else self.extract
        return JobAllocation(
            allocator=self.allocator,
            weighting=self.weighting,
            estimator=self.estimator,
            baseline=self.baseline,
            selection=self.selection,
            verdict=self.verdict,
            id_column=ID,
            rate_column=None if self.data.rate_column is None else RATE,
            extract=import_function(named) if ":" in named else named,
            equivalence=self.equivalence,
            rollout_log=self.directory / ROLLOUTS,
            failed_rewards=self.failed_rewards,
        )

    @cached_property
    def tool_functions(self) -> list[Callable[..., Any]]:
        """The tools. Raises ValueError if one does not exist."""
        return [import_function(where) for where in self.tools]


def read_job(
    config: Path | None, overrides: Sequence[str], name: str | None, resume: bool
) -> tuple[Job, dict[str, Any]]:
    """Return the job in the file ``config``, checked as far as the file goes, and its settings in full, as tables.

    Its name is ``name``, else the name in the file, else the file's. With ``resume`` and no file, the job is the one
    that was started under ``name``. Raises ConfigError.
    """
    if config is None:
        if not (resume and name):
            raise ConfigError("a job must be a TOML file, got none; give one, or --name and --resume for a started one")
        check_folder_name(name, RUNS)
        config = RUNS / name / FILE
        if not os.path.lexists(config):
            raise ConfigError(f"there is nothing to resume: {config} does not exist; give the job's file")
        read_settings(config)
    table = {"name": config.stem} | load(config, overrides) | ({"name": name} if name else {})
    try:
        job = build(Job, _with_lab_data(table))
    except ImportError as error:  # a verifier needs an extra that is missing
        raise ConfigError(str(error)) from error
    named = {key: table[key] for key in ("data", "evaluation") if key in table}
    return job, dump(job) | named  # the name of the lab's problems stays, because their file is in this user's cache


def lab_base(name: Any) -> str | None:
    """Return the base of the lab that ``name`` names, as "lab:medium" does; None for a name of something else."""
    return name.removeprefix(LAB) if isinstance(name, str) and name.startswith(LAB) else None


def _with_lab_data(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's table with the file in place of the name of the lab's problems, and with their verifier."""
    found, defaults = dict(table), dict[str, Any]()
    for key in ("data", "evaluation"):
        data = found.get(key)
        if not isinstance(data, Mapping) or (base := lab_base(data.get("name"))) is None:
            continue
        from apportion.lab.policy.job_source import DEFAULTS, lab_data  # noqa: PLC0415 - only such jobs need it

        try:
            found[key] = lab_data(base, {setting: value for setting, value in data.items() if setting != "name"})
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
        if key == "data":
            defaults = dict(DEFAULTS)
    return defaults | found
