"""Make the coordinator of a run from verl's configuration, with its data, its predictors and its checkpoint."""

from typing import Any

from omegaconf import DictConfig

from apportion.predictors import Predictor
from apportion.scheduler.decisions import check_draws
from apportion.verl.checkpoints import load_into, resumed_file
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.dataset import TrainingPrompts
from apportion.verl.settings import refilling
from apportion.verl.streaming import stream_of


def coordinator_of(config: DictConfig, allocation: VerlAllocation) -> Coordinator:
    """Return the coordinator of ``allocation``, still without workers. It continues from the checkpoint of ``config``.

    Raises OtherSettingsError for a checkpoint of another run, SavedStateError for one that cannot be used if
    ``allocation.resume`` is strict, and ValueError for data that do not fit.
    """
    prompts = TrainingPrompts(config, allocation.id_key, allocation.rate_key)
    if allocation.selection is not None or any(map(_reads_texts, (allocation.allocator, allocation.baseline))):
        allocation.prepare(prompts.all())
    check_draws(allocation.allocator, int(config.data.train_batch_size), prompts.distinct)
    selection = _selection(config, allocation, prompts)
    stream = stream_of(config, allocation, prompts.all()) if allocation.stream else None
    coordinator = Coordinator(allocation, prompts, selection, bool(refilling(config)), stream)
    checkpoint = resumed_file(config)
    if checkpoint is not None:
        load_into(coordinator, checkpoint)
    return coordinator


def _reads_texts(learner: Any) -> bool:
    """Return whether ``learner``, which may be None, has a predictor that embeds prompts."""
    predictor: Predictor | None = getattr(learner, "predictor", None)
    return predictor is not None and predictor.reads_texts


def _selection(config: DictConfig, allocation: VerlAllocation, prompts: TrainingPrompts) -> PromptSelection | None:
    if allocation.selection is None:
        return None
    size, seed = int(config.data.train_batch_size), int(config.data.get("seed") or 0)
    predictor: Predictor | None = getattr(allocation.allocator, "predictor", None)
    return PromptSelection(allocation.selection, prompts.in_order(), prompts.at, size, seed, predictor)
