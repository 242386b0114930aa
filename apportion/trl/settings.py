"""The settings of an allocation beside TRL's own, and the checks of both before anything is generated."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from apportion.advantages import Reduction, check_agreement, check_compared
from apportion.allocators import Size
from apportion.answers import EQUIVALENCES, EXTRACTORS, Equivalence
from apportion.checks import check_numbers
from apportion.engines.dataset_prompts import DatasetPrompts, columns_of, read_prompts
from apportion.engines.prompts import reads_rates
from apportion.records import LogText, check_log_text
from apportion.scheduler.decisions import TrainerAllocation, check_draws, warn_of_idle
from apportion.trl.failures import FailedRewards

logger = logging.getLogger(__name__)

Divisor = Literal["row", "batch", "token"]
"""The divisor of a loss that sums over rows: the rows of a micro-batch, masked ones included; its tokens; or all tokens
of the generation batch."""

LOSSES: dict[str, tuple[Reduction, Divisor]] = {
    "grpo": ("mean", "row"),
    "sapo": ("mean", "row"),
    "luspo": ("sum", "row"),
    "dr_grpo": ("sum", "row"),
    "bnpo": ("sum", "batch"),
    "dapo": ("sum", "token"),
    "cispo": ("sum", "token"),
    "vespo": ("sum", "token"),
    "rloo": ("sum", "row"),
}
"""TRL's losses: how the tokens of a row are reduced (sum or mean), and the divisor over rows.

With "batch" a micro-batch without any token adds 0 to the mean over micro-batches.
"""

DIVIDED_BY_MEAN = ("maxrl", "sft")
"""Estimators that divide by the mean reward of a group, which must be at least 0."""
IMAGE_COLUMNS = ("image", "images")
IDLE = ("whole_groups", "extract", "equivalence", "rollout_log", "rollout_log_text")
"""Settings that have no meaning in a stream."""


@dataclass(frozen=True, kw_only=True)
class TRLAllocation(TrainerAllocation):
    """How the rollouts of a generation batch are allocated, and how they enter the loss.

    Args:
        preset: a method as its paper combines the decisions, one of ``apportion.presets``, or its name.
        allocator: decides how many rollouts each prompt gets, with labels or without. A preset has one.
        weighting: whether every "prompt", "rollout" or "token" has equal weight in the loss. The default is the one
            that the estimator is unbiased under, "prompt" for all but "sequential". Equal groups have TRL's weights.
        estimator: one of ``apportion.advantages.ESTIMATORS``, by default TRL's formula.
        baseline: what the estimators "reinforce" and "spo" subtract from rewards.
        selection: chooses the prompts of each generation batch, and the prompts that the allocator draws in the middle
            of one. The default is TRL's order.
        outcome_gate: with True, groups of equal outcomes have no advantage, whatever the reward has beside the outcome;
            with "order", that also compares completions of the same outcome only. It goes by the ``verdict``, see
            ``apportion.advantages.gated``.
        verdict: the name of the reward function that is above 0 for correct completions. A single one with rewards of
            0 and 1, or -1 and 1, need not be named.
        id_column: the column that identifies a prompt; by default a hash of its content.
        rate_column: a column of success rates known before training, within [0, 1], such as the pass rate of another
            model; empty if unknown. They are the prior of ``EmpiricalBayes``, and the start of the baseline ``SPO``.
        extract: finds the answer in a completion in label-free training: one of ``apportion.answers.EXTRACTORS``, or a
            function from text to answer or None.
        equivalence: decides which answers are equal in label-free training: a name of
            ``apportion.answers.EQUIVALENCES``, or an ``Equivalence``.
        rollout_log: the folder of the rollout log (``apportion.records``), none by default.
        rollout_log_text: "full", or "hashes" for a log without prompts, and with hashes of answers and completions.
        failed_rewards: what happens to completions without a reward: ``FailedRewards``, or its name, "stop", "drop",
            "retry" or "abort".
        whole_groups: whether reward functions are called once for each finished group, with all of its completions,
            and not once for each round. The function ``verdict`` is still called in each round of an allocator that
            decides by outcomes.
    """

    verdict: str | None = None
    id_column: str | None = None
    rate_column: str | None = None
    extract: str | Callable[[str], str | None] = "auto"
    equivalence: str | Equivalence = "exact"
    rollout_log: Path | None = None
    rollout_log_text: LogText = "full"
    failed_rewards: FailedRewards | str = "stop"
    whole_groups: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self)
        if self.rollout_log is not None:
            object.__setattr__(self, "rollout_log", Path(self.rollout_log))
        check_log_text(self.rollout_log_text, "rollout_log_text")
        self.failures  # noqa: B018 - raises now if it is neither settings nor a name of some
        if isinstance(self.extract, str) and self.extract not in EXTRACTORS:
            raise ValueError(f"extract must be one of {', '.join(EXTRACTORS)}, got {self.extract!r}; or a function")
        if isinstance(self.equivalence, str) and self.equivalence not in EQUIVALENCES:
            raise ValueError(
                f"equivalence must be one of {', '.join(EQUIVALENCES)}, got {self.equivalence!r}; check the spelling"
            )
        if self.label_free and (self.verdict or self.baseline):
            raise ValueError(
                f"without labels rewards come from the votes, got verdict {self.verdict!r} and baseline "
                f"{self.baseline} with {self.allocator.name}; leave both out"
            )

    @property
    def failures(self) -> FailedRewards:
        """What happens to completions without a reward."""
        return FailedRewards.of(self.failed_rewards)

    @property
    def vote_reward_name(self) -> str:
        """The name under which rewards from votes are logged."""
        reward = getattr(self.allocator, "reward", "")
        return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)

    @property
    def extractor_name(self) -> str | None:
        """What finds answers in label-free training, as a warning names it; None if votes give no rewards."""
        if not self.label_free:
            return None
        return getattr(self.extract, "__name__", repr(self.extract))

    def with_defaults(self, args: Any) -> Self:
        """Return the settings, completed by TRL's configuration ``args`` where the allocator leaves something open.

        ``num_generations`` is its budget, and the estimator that trains is the one whose variance it minimises.

        Raises ValueError if the allocator cannot have that budget.
        """
        num_generations = args.num_generations
        allocator = self.allocator.with_estimator(self.estimator or _trained(args))
        try:
            return replace(self, allocator=allocator.with_budget(num_generations))
        except ValueError as error:
            raise ValueError(
                f"num_generations must suit {self.allocator.name}, which takes its budget from it, got "
                f"{num_generations} ({error}); raise num_generations, or give the allocator other settings"
            ) from error

    def generations(self, args: Any) -> int:
        """Return the number of completions per prompt that TRL's batch has room for: ``num_generations``, or 1.

        It is 1 if the allocator draws exactly one for each prompt, which TRL's configuration cannot say, because it
        wants at least 2. A generation batch has as many prompts then as it has rows.
        """
        rows, usual = args.generation_batch_size, args.num_generations
        single = Size(asked=rows, kept=rows, exact=True, rounds=1)
        try:
            return (
                1 if rows > 1 and self.allocator.size(rows) == single != self.allocator.size(rows // usual) else usual
            )
        except ValueError:  # an allocator that cannot plan for so many prompts
            return usual

    def checked(self, args: Any, given: Mapping[str, Any], loss: str | None = None) -> Self:
        """Return ``with_defaults(args)``. Raises ValueError if it cannot work with what a trainer is ``given``."""
        dataset: Any = given.get("train_dataset")
        found, functions = self.with_defaults(args), given.get("reward_funcs")
        if self.selection is not None:
            check_known("a selection", dataset)
        if hasattr(dataset, "__len__") and len(dataset) < (prompts := found.prompts(args)):
            raise ValueError(
                f"the data must have the {prompts} prompts of a generation batch, got {len(dataset)}; TRL would train "
                "no step: give more, or lower generation_batch_size / num_generations"
            )
        rewards: int | None = len(functions) if isinstance(functions, (list, tuple)) else 1
        if given.get("environment_factory") is not None:
            rewards = None
            if dataset is None:
                found.check_without_data()
        found.check(args, columns_of(dataset), rewards, loss)
        return found

    def check(self, args: Any, columns: Sequence[str], rewards: int | None, loss: str | None = None) -> None:
        """Raise ValueError if this cannot work with TRL's configuration ``args`` and the data set's ``columns``.

        ``rewards`` is the number of reward functions, None if environments may add some, and ``loss`` the ``loss_type``
        that has the same sums as a loss of the trainer's own. Log a warning if micro-batches
        hold fewer rows than TRL expects.
        """
        self._check_columns(columns)
        self._check_rules(rewards)
        if self.outcome_gate == "order" and getattr(args, "multi_objective_aggregation", "") == "normalize_then_sum":
            raise ValueError(
                "outcome_gate must be True or False if each reward function is normalized alone, got 'order'; set "
                'True, or multi_objective_aggregation="sum_then_normalize"'
            )
        if self.allocator.needs.reused_rollouts and args.beta != 0 and args.sync_ref_model:
            raise ValueError(
                f"sync_ref_model must be False if {self.allocator.name} trains on rows of earlier steps, got True: "
                'these have log-probabilities of an old reference; set it to False, or reuse="stop_gradient"'
            )
        if _trained(args) == "rloo" and args.beta and self.estimator in DIVIDED_BY_MEAN:
            raise ValueError(
                f"beta must be 0 with the estimator {self.estimator}, which divides by the mean reward, got "
                f"{args.beta}: rewards less RLOO's penalty may be negative; set beta=0.0, or take another estimator"
            )
        if loss is None and getattr(args, "loss_type", "rloo") not in LOSSES:
            raise ValueError(
                f"loss_type must be one of TRL's, {', '.join(LOSSES)}, got {args.loss_type!r}; check the spelling, or "
                "for a trainer with a loss of its own say which it is like: allocated(base, loss=...)"
            )
        if self.whole_groups:
            self._check_whole_groups(rewards)
        self._check_estimator(self.estimator or _trained(args))
        self._check_size(args.generation_batch_size, self.prompts(args))

    def check_stream(self, args: Any, names: Sequence[str], dataset: Any) -> None:
        """Raise ValueError if this cannot work without batches, in TRL's asynchronous trainer under ``args``.

        ``names`` are those of the reward functions.
        """
        check_known("a stream", dataset)
        if given := [name for name in IDLE if getattr(self, name) != getattr(TRLAllocation, name)]:
            raise ValueError(
                f"{' and '.join(given)} must be left out of a stream, which has no whole groups, votes or log, got "
                f"{', '.join(repr(getattr(self, name)) for name in given)}; use AllocatedGRPOTrainer"
            )
        if args.weight_sync_steps != 1:
            raise ValueError(
                f"weight_sync_steps must be 1, because an age is counted in updates, got {args.weight_sync_steps}; "
                "leave it out"
            )
        if self.label_free or self.allocator.needs.reused_rollouts:
            raise ValueError(
                f"allocator must take its rewards from functions and its rollouts from this run's policy, got "
                f"{self.allocator.name}; use it with AllocatedGRPOTrainer"
            )
        if self.selection is not None and self.selection.weighted:
            raise ValueError(
                f"selection must give all prompts the same weight, got {self.selection.name}; take one without weights"
            )
        check_verdict(self.verdict, names)
        self._check_columns(dataset.column_names)
        self._check_rules(len(names))
        self._check_estimator(str(self.estimator))

    def check_without_data(self) -> None:
        """Raise ValueError if the allocator tells prompts apart, which it cannot if environments name the tasks."""
        if self.allocator.adapts or not self.allocator.one_round:
            raise ValueError(
                f"train_dataset must have the tasks as prompts with {self.allocator.name}, which compares rollouts of "
                "one prompt, got None: environments then choose their tasks in reset(), and all prompts are equal; "
                "give a data set with a row for each task, or use Uniform()"
            )

    def prompts(self, args: Any) -> int:
        """Return the number of prompts that a generation batch of TRL begins with."""
        return args.generation_batch_size // self.generations(args)

    def read(self, dataset: Any) -> DatasetPrompts:
        """Return the prompts of ``dataset``. Log a warning if rows are unlike an earlier row with the same id.

        Raises ValueError for such rows if the allocator trains on responses of earlier steps, which it would mix up.
        """
        found = read_prompts(dataset, self.id_column, self.rate_column)
        if found.differing:
            problem = (
                f"rows with one prompt must be the same question, got {found.differing} whose other columns differ "
                f"from those of an earlier row with the same prompt, and {len(found.distinct)} prompts in all"
            )
            if self.allocator.needs.reused_rollouts:
                raise ValueError(f"{problem}; name an id_column that tells them apart")
            logger.warning("%s; they share a belief: name an id_column if they are different questions", problem)
        return found

    def prepare_run(self, dataset: Any, args: Any) -> None:
        """Give the allocator, the baseline and the selection all prompts of ``dataset``, under TRL's ``args``.

        Raises ValueError if they are too few.
        """
        found = self.read(dataset)
        self.check_distinct(len(found.distinct), self.prompts(args))
        self.prepare(found.distinct)
        if self.selection is not None:
            seed = args.seed if args.data_seed is None else args.data_seed
            self.selection.prepare(found.every, seed, getattr(self.allocator, "predictor", None))

    def check_distinct(self, distinct: int, prompts: int) -> None:
        """Raise ValueError if ``distinct`` prompts are too few for generation batches that begin with ``prompts``."""
        if self.selection is not None and distinct < prompts:
            raise ValueError(
                f"a selection must have {prompts} distinct prompts for a generation batch, got {distinct}; give more, "
                "or lower generation_batch_size / num_generations"
            )
        check_draws(self.allocator, prompts, lambda _: distinct)

    def functions_of_rounds(self, names: Sequence[str]) -> list[int]:
        """Return which reward functions score each round: all, or with ``whole_groups`` the verdict, or none."""
        if not self.whole_groups:
            return list(range(len(names)))
        return [] if self.allocator.one_round or self.verdict is None else [names.index(self.verdict)]

    def _check_estimator(self, trained: str) -> None:
        check_compared(self.allocator, trained)
        check_agreement(self.allocator, trained, self.loss_weighting)

    def _check_whole_groups(self, rewards: int | None) -> None:
        if self.label_free:
            raise ValueError(
                f"whole_groups must be False with {self.allocator.name}, whose rewards come from votes, got True; give "
                "the allocator a reward, which is a function of whole groups"
            )
        if rewards is None:
            raise ValueError(
                "whole_groups must be False with an environment_factory, whose environments end with their round, got "
                "True; leave one of them out"
            )
        if not self.allocator.one_round and (self.verdict is None or rewards == 1):
            raise ValueError(
                f"whole_groups needs a verdict and another reward function with {self.allocator.name}, which decides "
                f"by outcomes between rounds, got verdict {self.verdict!r} and {rewards} in all; name the verdict, "
                "which is called in each round, or use an allocator that plans all at once, such as VIP"
            )

    def _check_rules(self, rewards: int | None) -> None:
        """Warn if known rates have no effect.

        Raise ValueError if correct rollouts are counted, but no verdict is named.
        """
        warn_of_idle(self)
        if self.rollout_log is None and self.rollout_log_text != "full":
            logger.warning("rollout_log_text has no effect, because there is no rollout_log; name its folder")
        if self.rate_column is not None and not reads_rates(self.allocator, self.baseline, self.selection):
            logger.warning(
                "rate_column %r has no effect, because no predictor takes known rates; use empirical_bayes, or the "
                "baseline spo",
                self.rate_column,
            )
        if not self.label_free and self.needs.binary and self.verdict is None and rewards != 1:
            raise ValueError(
                f"verdict must name a reward function for {self.counting}, which counts correct rollouts, got "
                f"{'several' if rewards is None else rewards} reward functions and no verdict; name the one that is "
                "positive for correct completions"
            )

    def _check_columns(self, columns: Sequence[str]) -> None:
        images = [column for column in columns if column in IMAGE_COLUMNS]
        if images:
            raise ValueError(
                f"prompts must be text, got a column {images[0]!r}; remove it, or train without an allocator"
            )
        for name, column, default in (
            ("id_column", self.id_column, "hashes"),
            ("rate_column", self.rate_column, "no known rates"),
        ):
            if column is not None and columns and column not in columns:
                raise ValueError(
                    f"{name} must be one of {', '.join(columns)}, got {column!r}; leave it out for {default}"
                )

    @property
    def counting(self) -> str:
        """The name of the part that counts correct rollouts, if there is one."""
        counting = (part.name for part in self.parts.values() if part is not None and part.needs.binary)
        return next(counting, "outcome_gate" if self.outcome_gate else "")

    def norm_reduction(self, loss: str) -> Reduction | None:
        """Return how ``loss``, a key of ``LOSSES``, reduces a row's tokens; None if score norms are not needed.

        Weights by token undo a mean.
        """
        if not self.needs.score_norms:
            return None
        return "sum" if self.loss_weighting == "token" else LOSSES[loss][0]

    def _check_size(self, rows: int, prompts: int) -> None:
        """Compare what the allocator trains on with the ``rows`` of TRL's generation batch. Raises ValueError."""
        size = self.allocator.size(prompts)
        kept = size.kept
        if kept is None or not size.exact:
            return
        if kept > rows:
            raise ValueError(
                f"{self.allocator.name} must train on no more than TRL's batches hold, {rows} rollouts of {prompts} "
                f"prompts, got {kept}; have it keep {rows // prompts} per prompt on average, or raise num_generations"
            )
        if kept < rows:
            logger.warning(
                "%s trains on %d rollouts of %d prompts, and micro-batches are sized for %d; lower num_generations "
                "to what a prompt gets, or raise the batch size",
                self.allocator.name,
                kept,
                prompts,
                rows,
            )


def check_verdict(verdict: str | None, names: Sequence[str]) -> None:
    """Raise ValueError if ``verdict`` is none of the reward functions, whose names are ``names``."""
    if verdict is not None and verdict not in names:
        raise ValueError(
            f"verdict must be one of the reward functions, {', '.join(names)}, got {verdict!r}; check the spelling"
        )


def check_known(what: str, dataset: Any) -> None:
    """Raise ValueError if ``dataset`` yields its prompts one by one, because ``what`` must know all of them."""
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{what} must know all prompts beforehand, got a {type(dataset).__name__} without a length; load the data "
            "as a Dataset"
        )


def _trained(args: Any) -> str:
    """Return the name in ``ESTIMATORS`` of TRL's own formula under ``args``, up to a factor that all prompts share."""
    if not hasattr(args, "scale_rewards"):
        return "rloo"
    if getattr(args, "multi_objective_aggregation", "") == "normalize_then_sum":
        return "grpo"  # each function is divided by its deviation in the group, whatever scale_rewards says
    return "grpo" if args.scale_rewards in ("group", True) else "dr_grpo"
