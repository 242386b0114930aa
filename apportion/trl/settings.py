"""The settings of an allocation beside TRL's own, and the checks of both before anything is generated."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from apportion.advantages import ESTIMATORS, Weighting, check_agreement, check_baseline, default_weighting
from apportion.allocators import Allocator
from apportion.answers import EQUIVALENCES, EXTRACTORS, Equivalence
from apportion.baselines import Baseline
from apportion.types import Needs

logger = logging.getLogger(__name__)

Reduction = Literal["sum", "mean"]
Divisor = Literal["row", "batch", "token"]

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
"""TRL's losses: sum or mean over the tokens of a row, and what these are divided by.

"row" is the rows of a micro-batch, masked ones included. "batch" is its tokens, so that a micro-batch without any adds
0 to the mean over micro-batches. "token" is the tokens of the whole batch."""

IMAGE_COLUMNS = ("image", "images")


@dataclass(frozen=True, kw_only=True)
class TRLAllocation:
    """How the rollouts of a generation batch are allocated, and how they enter the loss.

    Args:
        allocator: decides how many rollouts each prompt gets, with labels or without.
        weighting: whether every "prompt", "rollout" or "token" has equal weight in the loss. The default is the one
            that the estimator is unbiased under, "prompt" for all but "sequential". Equal groups have TRL's weights.
        estimator: one of ``apportion.advantages.ESTIMATORS``, by default TRL's formula.
        baseline: what the estimator "reinforce" subtracts from rewards.
        verdict: the name of the reward function that is above 0 for correct completions. A single one with rewards of
            0 and 1 need not be named.
        id_column: the column that identifies a prompt; by default a hash of its content.
        extract: finds the answer in a completion in label-free training: one of ``apportion.answers.EXTRACTORS``, or a
            function from text to answer or None.
        equivalence: decides which answers are equal in label-free training: a name of
            ``apportion.answers.EQUIVALENCES``, or an ``Equivalence``.
        rollout_log: the folder of the rollout log (``apportion.records``), none by default.
    """

    allocator: Allocator
    weighting: Weighting | None = None
    estimator: str | None = None
    baseline: Baseline | None = None
    verdict: str | None = None
    id_column: str | None = None
    extract: str | Callable[[str], str | None] = "auto"
    equivalence: str | Equivalence = "exact"
    rollout_log: Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.allocator, Allocator):
            raise TypeError(
                f"allocator must be an Allocator, got {self.allocator!r}; make one, such as apportion.HORA()"
            )
        if self.weighting not in (None, *get_args(Weighting)):
            raise ValueError(
                f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}; leave it out for "
                "the one that suits the estimator"
            )
        if self.estimator is not None and self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}; leave it out for TRL's own"
            )
        check_baseline(self.estimator, self.baseline)
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
    def label_free(self) -> bool:
        """Whether rewards come from votes."""
        return not self.allocator.needs.labels

    @property
    def loss_weighting(self) -> Weighting:
        """What has equal weight in the loss."""
        return self.weighting or default_weighting(self.estimator)

    @property
    def vote_reward_name(self) -> str:
        """The name under which rewards from votes are logged."""
        reward = getattr(self.allocator, "reward", "")
        return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)

    def check(self, args: Any, columns: Sequence[str], rewards: int | None) -> None:
        """Raise ValueError if this cannot work with TRL's configuration ``args`` and the data set's ``columns``.

        ``rewards`` is the number of reward functions, None if environments may add some. Log a warning if micro-batches
        may hold more or fewer rows than TRL expects.
        """
        self._check_columns(columns)
        if not self.label_free and self.needs.binary and self.verdict is None and rewards != 1:
            raise ValueError(
                f"verdict must name a reward function for {self.allocator.name}, which counts correct rollouts, got "
                f"{'several' if rewards is None else rewards} reward functions and no verdict; name the one that is "
                "positive for correct completions"
            )
        if self.allocator.needs.reused_rollouts and args.beta != 0 and args.sync_ref_model:
            raise ValueError(
                f"sync_ref_model must be False if {self.allocator.name} trains on rows of earlier steps, got True: "
                'these have log-probabilities of an old reference; set it to False, or reuse="stop_gradient"'
            )
        if getattr(args, "loss_type", "rloo") not in LOSSES:
            raise ValueError(
                f"loss_type must be one of {', '.join(LOSSES)}, got {args.loss_type!r}; "
                "it must be known how the loss treats masked rows"
            )
        check_agreement(self.allocator, self.estimator or _trained(args), self.loss_weighting)
        self._check_size(int(args.generation_batch_size), int(args.num_generations))

    def check_repeated(self, differing: int, prompts: int) -> None:
        """Warn if ``differing`` rows are unlike an earlier row with the same id, in a data set of ``prompts`` ids.

        Raises ValueError if the allocator trains on responses of earlier steps, because it would mix them up.
        """
        if not differing:
            return
        problem = (
            f"rows with one prompt must be the same question, got {differing} whose other columns differ from those of "
            f"an earlier row with the same prompt, and {prompts} prompts in all"
        )
        if self.allocator.needs.reused_rollouts:
            raise ValueError(f"{problem}; name an id_column that tells them apart")
        logger.warning("%s; they share a belief: name an id_column if they are different questions", problem)

    def _check_columns(self, columns: Sequence[str]) -> None:
        images = [column for column in columns if column in IMAGE_COLUMNS]
        if images:
            raise ValueError(
                f"prompts must be text, got a column {images[0]!r}; remove it, or train without an allocator"
            )
        if self.id_column is not None and columns and self.id_column not in columns:
            raise ValueError(
                f"id_column must be one of {', '.join(columns)}, got {self.id_column!r}; leave it out for hashes"
            )

    @property
    def needs(self) -> Needs:
        """What the allocator and the baseline need to know of each rollout. Score norms cost one more forward pass."""
        return self.allocator.needs if self.baseline is None else self.allocator.needs | self.baseline.needs

    def _check_size(self, rows: int, num_generations: int) -> None:
        """Compare what the allocator trains on with the ``rows`` of TRL's generation batch. Raises ValueError."""
        prompts = rows // num_generations
        size = self.allocator.size(prompts)
        kept = size.kept
        if kept is None or (kept > rows and not size.exact):
            logger.warning(
                "%s may train on up to %s rollouts of %d prompts, and micro-batches are sized for %d; if memory runs "
                "out, raise num_generations to the most that a prompt may keep",
                self.allocator.name,
                "any number of" if kept is None else kept,
                prompts,
                rows,
            )
        elif kept > rows:
            raise ValueError(
                f"{self.allocator.name} must train on no more than TRL's batches hold, {rows} rollouts of {prompts} "
                f"prompts, got {kept}; have it keep {num_generations} per prompt on average, or raise num_generations"
            )
        elif kept < rows and size.exact:
            logger.warning(
                "%s trains on %d rollouts of %d prompts, and micro-batches are sized for %d; lower num_generations "
                "to what a prompt gets, or raise the batch size",
                self.allocator.name,
                kept,
                prompts,
                rows,
            )


def _trained(args: Any) -> str:
    """Return the name in ``ESTIMATORS`` of TRL's own formula under ``args``, up to a factor that all prompts share."""
    if not hasattr(args, "scale_rewards"):
        return "rloo"
    return "grpo" if args.scale_rewards in ("group", True) else "dr_grpo"
