"""Pickles of events and snapshots that cannot run code when they are read.

They are pickles because there are many events, which must be written quickly. The unpickler knows the classes of events
and of snapshots and refuses every other name. Arrays are written as bytes, because numpy's own way to unpickle them can
be made to allocate any amount of memory.
"""

import copyreg
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout
from apportion.verl.coordinator.messages import (
    CommitTask,
    MetricsLogged,
    Reassigned,
    RolloutTask,
    RowAddress,
    RowsRequest,
    TaskResult,
    TrainedGroup,
    TrainedRow,
    TrainerRequest,
    WrittenRollout,
)
from apportion.verl.coordinator.rounds import AllocationRound, FinishedPrompts, PendingTask, PlannedBatch


def restore_array(kind: str, shape: tuple[int, ...], content: bytes) -> NDArray[Any]:
    """Return the array of numbers that ``content`` holds. Raise ValueError for another kind, or a size that differs."""
    dtype = np.dtype(kind)
    if dtype.kind not in NUMBERS:
        raise ValueError(f"an array in a journal must hold numbers, got {kind!r}; write lists of other values")
    return np.frombuffer(content, dtype).reshape(shape).copy()


def restore_scalar(kind: str, content: bytes) -> Any:
    """Return the numpy number that ``content`` holds."""
    return restore_array(kind, (), content)[()]


NUMBERS = "biufc"
SCALARS = (np.bool_, np.int32, np.int64, np.float32, np.float64)
MESSAGES = (CommitTask, MetricsLogged, Reassigned, RolloutTask, RowAddress, TaskResult, TrainedGroup, TrainedRow)
ROUNDS = (RowsRequest, TrainerRequest, WrittenRollout, AllocationRound, FinishedPrompts, PendingTask, PlannedBatch)
VALUES = (Batch, Belief, Group, Plan, Prompt, Rollout, Counter, OrderedDict)
KNOWN: dict[tuple[str, str], Any] = {
    (each.__module__, each.__qualname__): each for each in (*MESSAGES, *ROUNDS, *VALUES, restore_array, restore_scalar)
}
"""All that a journal may name, by module and name. None of it does more than to hold the values that it is given."""


def _reduce_array(array: NDArray[Any]) -> Any:
    if array.dtype.kind in NUMBERS:
        return restore_array, (array.dtype.str, array.shape, array.tobytes())
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _reduce_scalar(scalar: np.generic) -> Any:
    return restore_scalar, (scalar.dtype.str, scalar.tobytes())


REDUCERS: Mapping[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    np.ndarray: _reduce_array,
    **dict.fromkeys(SCALARS, _reduce_scalar),
}


class EventPickler(pickle.Pickler):
    """Pickles what a journal may hold. Arrays of numbers and numpy's scalars become bytes."""

    dispatch_table = REDUCERS


class EventUnpickler(pickle.Unpickler):
    """Unpickles ``KNOWN`` classes and plain data. Raises ValueError for any other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function of this name."""
        if (module, name) not in KNOWN:
            raise ValueError(f"it must hold events of a coordinator, got {module}.{name}")
        return KNOWN[module, name]
