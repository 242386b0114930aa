"""Check that verl's configuration and the allocator's settings fit together, before Ray starts."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.import_utils import load_class_from_fqn

from apportion.advantages import check_agreement, check_baseline, check_compared, default_weighting
from apportion.allocators import AR3PO, Allocator, ReinforceAda
from apportion.checks import choices
from apportion.config import placed
from apportion.scheduler.decisions import check_draws
from apportion.verl.advice import warn
from apportion.verl.checkpoints import SavedAllocation, resumed_file
from apportion.verl.coordinator.settings import PREFIX, VerlAllocation
from apportion.verl.estimators import LOSSES, NAMES, OWN_AGGREGATION
from apportion.verl.seam import check_installed
from apportion.verl.settings import by_row, norm_reduction, refilling, trained_estimator
from apportion.verl.streaming import check_stream

logger = logging.getLogger(__name__)

MANAGER = "apportion.verl.AllocatedAgentLoopManager"
SAVED = "apportion.verl.SavedAllocation"

AGGREGATED = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "gpg", "clip_cov", "kl_cov", "dro", "cispo", "bypass_mode")
"""The values of verl's ``policy_loss.loss_mode`` that weigh rows by ``loss_agg_mode``."""

UNSUPPORTED = ("remax", "gdpo", "grpo_passk")
"""verl's estimators that sample or reward in their own way, or that end the run at a group of one row."""


REQUIRED = (
    "actor_rollout_ref.rollout.n",
    "data.train_batch_size",
    "data.train_files",
    "trainer.default_local_dir",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.total_epochs",
)
"""Settings of verl that have no meaning without a value."""


def check_given(config: DictConfig) -> None:
    """Raise ValueError for a setting that verl and we read, and that is null."""
    for name in REQUIRED:
        if OmegaConf.select(config, name) is None:
            raise ValueError(f"{name} must have a value, got null; leave it out for verl's own, or set it")


def check(config: DictConfig, allocation: VerlAllocation) -> None:
    """Raise ValueError for settings that cannot work together. Log a warning for settings that waste computation."""
    check_installed()
    _check_trainer(config)
    _check_allocator(config, allocation.allocator)
    check_stream(config, allocation)
    _check_selection(config, allocation)
    _check_estimator(config, allocation)
    _check_score_norms(config, allocation)
    _check_reuse(config, allocation.allocator)
    _check_checkpoints(config, allocation)
    _check_folder(Path(config.trainer.default_local_dir).absolute())
    _check_rows(config, allocation.allocator)
    warn(config, allocation)


def _check_trainer(config: DictConfig) -> None:
    if not config.trainer.get("use_v1", False):
        raise ValueError("trainer.use_v1 must be True, got False; verl's old trainer cannot have an allocator")
    get_trainer_cls(config.trainer.v1.trainer_mode)
    manager = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    if manager != MANAGER:
        raise ValueError(
            f"actor_rollout_ref.rollout.agent.agent_loop_manager_class must be {MANAGER}, got {manager!r}; set it"
        )
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise ValueError(
            "reward.reward_model.enable_resource_pool must be True with a reward model, got False; a colocated model "
            "scores after all sampling, but allocators read rewards in between"
        )
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        raise ValueError(
            "skip.rollout_tq.enable must be False, got True; it reads rollouts from a file, so nothing is allocated"
        )


def _check_allocator(config: DictConfig, allocator: Allocator) -> None:
    try:
        size = allocator.size(int(config.data.train_batch_size))
    except ValueError as error:
        raise ValueError(placed(str(error), type(allocator), "allocation.allocator")) from error
    for setting in refilling(config):
        try:
            allocator.size(1)
        except ValueError as error:
            raise ValueError(
                f"allocation.allocator must be able to spend on any number of prompts with {setting}, because verl "
                f"then replaces single prompts, got {allocator.name}, whose {error}; give rollouts_per_prompt"
            ) from error
    filters = OmegaConf.select(config, "algorithm.filter_groups.enable")
    if filters and (size.fresh or not allocator.needs.labels):
        raise ValueError(
            f"algorithm.filter_groups.enable must be False with {allocator.name}, got True; verl's filter needs rows "
            "of every prompt, and this allocator leaves prompts without any"
        )


def _check_selection(config: DictConfig, allocation: VerlAllocation) -> None:
    selector = allocation.selection
    if selector is None:
        return
    workers = int(config.data.dataloader_num_workers)
    if workers:
        raise ValueError(
            f"data.dataloader_num_workers must be 0 with allocation.selection, got {workers}; workers load batches "
            "ahead, before their prompts can be chosen, so set it to 0"
        )
    if selector.weighted and not by_row(config):
        raise ValueError(
            f"algorithm.adv_estimator must be one of {', '.join(NAMES)} with allocation.selection.importance_weights, "
            f"got {config.algorithm.adv_estimator}; verl's own estimators do not weigh prompts"
        )


def _check_estimator(config: DictConfig, allocation: VerlAllocation) -> None:
    name = str(config.algorithm.adv_estimator)
    if name in UNSUPPORTED:
        raise ValueError(
            f"algorithm.adv_estimator must not be {name}, which samples, rewards or groups in its own way; use one of "
            f"{', '.join(NAMES)}"
        )
    trained, own, loss = trained_estimator(config), by_row(config), config.actor_rollout_ref.actor.loss_agg_mode
    if loss not in LOSSES:
        raise ValueError(
            f"actor_rollout_ref.actor.loss_agg_mode must be one of {', '.join(LOSSES)}, got {loss!r}; "
            "estimators and score norms must know how the loss treats the tokens of a row"
        )
    if own:
        _check_own_estimator(config, name)
    else:
        _check_verls_estimator(name, allocation)
    try:
        if own:
            check_compared(allocation.allocator, trained)
        check_baseline(trained, allocation.baseline)
        # the weights of verl's own estimators have a warning of theirs
        weighting = allocation.weighting or default_weighting(trained) if own else "prompt"
        check_agreement(allocation.allocator, trained, weighting)
    except ValueError as error:
        raise ValueError(f"allocation must fit algorithm.adv_estimator={name}: {error}") from error


def _check_own_estimator(config: DictConfig, name: str) -> None:
    actor = config.actor_rollout_ref.actor
    loss, mode = actor.loss_agg_mode, actor.policy_loss.get("loss_mode", "vanilla")
    if name not in NAMES:
        raise ValueError(f"algorithm.adv_estimator must be known, got {name}; {choices(name, NAMES)}")
    if mode not in AGGREGATED and mode not in OWN_AGGREGATION:
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode must be one of {', '.join([*AGGREGATED, *OWN_AGGREGATION])}"
            f" with {name}, got {mode}; the estimator must know how the loss weighs rows"
        )
    if OWN_AGGREGATION.get(mode, loss) != loss:
        raise ValueError(
            f"actor_rollout_ref.actor.loss_agg_mode must be {OWN_AGGREGATION[mode]} with policy_loss.loss_mode={mode}, "
            f"got {loss}; verl uses that mode whatever is set, and {name} must know it"
        )
    if name == f"{PREFIX}grpo" and not config.algorithm.get("norm_adv_by_std_in_grpo", True):
        raise ValueError(
            f"algorithm.norm_adv_by_std_in_grpo must be True with {name}, got False; {PREFIX}dr_grpo does not normalize"
        )


def _check_verls_estimator(name: str, allocation: VerlAllocation) -> None:
    try:
        get_adv_estimator_fn(name)
    except ValueError as error:
        known = [*NAMES, *(each.value for each in AdvantageEstimator if each.value not in UNSUPPORTED)]
        raise ValueError(f"algorithm.adv_estimator must be known, got {name}; {choices(name, known)}") from error
    if allocation.weighting is not None:
        raise ValueError(
            f"allocation.weighting needs an {PREFIX} estimator, got {allocation.weighting} with {name}; leave it out, "
            f"or set algorithm.adv_estimator={PREFIX}rloo"
        )
    if _compares_beyond_loss(allocation.allocator):
        raise ValueError(
            f"algorithm.adv_estimator must be one of {', '.join(NAMES)} with {allocation.allocator.name}, got {name}; "
            "its baselines use rollouts that are not trained on, which verl's own estimators do not see"
        )
    if name != AdvantageEstimator.GAE.value:
        logger.warning(
            "algorithm.adv_estimator=%s weighs prompts by their numbers of rollouts, and its baselines use trained "
            "rollouts only; %srloo does neither",
            name,
            PREFIX,
        )


def _compares_beyond_loss(allocator: Allocator) -> bool:
    if isinstance(allocator, AR3PO):
        return allocator.reuse == "stop_gradient"
    return isinstance(allocator, ReinforceAda) and allocator.down_sample


def _check_score_norms(config: DictConfig, allocation: VerlAllocation) -> None:
    """Check that verl returns the log-probabilities of sampled tokens, from which score norms are computed."""
    if norm_reduction(config, allocation) is not None and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise ValueError(
            f"actor_rollout_ref.rollout.calculate_log_probs must be True with {allocation.allocator.name} and "
            f"{config.algorithm.adv_estimator}, got False; the allocator, selection, estimator or baseline "
            "reads score norms, which are computed from the log-probabilities of sampled tokens: set it to True"
        )


def _check_reuse(config: DictConfig, allocator: Allocator) -> None:
    if not allocator.needs.reused_rollouts:
        return
    correction = config.algorithm.get("rollout_correction") or {}
    bypass, corrected = bool(correction.get("bypass_mode")), correction.get("rollout_is") is not None
    remedy = f"allocation.allocator.{'reuse=replay' if isinstance(allocator, AR3PO) else 'max_age=0'}"
    if not allocator.needs.behaviour_logprobs and bypass:
        raise ValueError(
            f"algorithm.rollout_correction.bypass_mode must be False if {allocator.name} recomputes log-probabilities "
            f"of reused rows, got True; set it to False, or {remedy}"
        )
    if allocator.needs.behaviour_logprobs and not (
        config.actor_rollout_ref.rollout.calculate_log_probs and (bypass or corrected)
    ):
        raise ValueError(
            "allocation.allocator.reuse=replay needs the log-probabilities that reused rows were sampled with; set "
            "actor_rollout_ref.rollout.calculate_log_probs=True and algorithm.rollout_correction.rollout_is=token (or "
            "bypass_mode=True), or allocation.allocator.reuse=recompute"
        )


def _check_checkpoints(config: DictConfig, allocation: VerlAllocation) -> None:
    """Check that checkpoints get the allocator's state. With a strict resume the one to resume must have it.

    It may not be visible from here.
    """
    trainer = config.trainer
    callback = trainer.get("checkpoint_callback_class")
    if trainer.save_freq > 0 and not (callback and _saves(callback)):
        raise ValueError(
            f"trainer.checkpoint_callback_class must be {SAVED} or a subclass if trainer.save_freq is above 0, got "
            f"{callback}; without it checkpoints lack the allocator's state"
        )
    folder = trainer.resume_from_path
    if trainer.resume_mode != "resume_path" or (folder and Path(folder).exists()):
        resumed_file(config, strict=allocation.resume == "strict")


def _saves(callback: str) -> bool:
    try:
        return issubclass(load_class_from_fqn(callback, "trainer.checkpoint_callback_class"), SavedAllocation)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"trainer.checkpoint_callback_class must be importable, got {callback}: {error}; check its name"
        ) from error


def _check_rows(config: DictConfig, allocator: Allocator) -> None:
    """Raise ValueError if the training files have fewer rows than a batch and the prompts drawn beside it need.

    Only Parquet files that are visible from here are counted. The data set may drop rows, but never adds any.
    """
    from pyarrow import ArrowInvalid  # noqa: PLC0415 - it takes a second, and comes with verl
    from pyarrow.parquet import read_metadata  # noqa: PLC0415

    files, most = config.data.train_files, config.data.get("train_max_samples", -1)
    paths = [Path(each).expanduser() for each in ([files] if isinstance(files, str) else files)]
    if OmegaConf.select(config, "data.custom_cls.path") or not all(path.is_file() for path in paths):
        return
    try:
        rows = sum(read_metadata(path).num_rows for path in paths)
    except ArrowInvalid:  # another format, which verl reads or refuses
        return
    rows = min(rows, most) if most > 0 else rows
    for name in ("train_batch_size", "gen_batch_size"):
        if rows < (prompts := config.data.get(name) or 0):
            raise ValueError(
                f"data.{name} must be at most the {rows} rows of data.train_files, got {prompts}; verl would train no "
                "step: lower it, or give more rows"
            )
    check_draws(allocator, int(config.data.train_batch_size), lambda _: rows)


def _check_folder(folder: Path) -> None:
    """Raise ValueError unless files can be written in ``folder``, or it can be made. It leaves nothing behind."""
    nearest = folder
    try:
        while not nearest.exists():
            nearest = nearest.parent
        with TemporaryDirectory(prefix=".apportion-", dir=nearest) as tried:  # a real write: root ignores mode bits
            (Path(tried) / "file").write_bytes(b"0")
    except OSError as error:
        raise ValueError(
            f"trainer.default_local_dir must be a folder that can be written, got {folder}: {error.strerror} "
            f"({nearest}); name another, or make it writable"
        ) from error
