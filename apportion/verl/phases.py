"""Observe from another thread at which line of a step verl's trainer is, and for how long.

Its waits for sleeping servers, for the transfer of weights and for its training workers have no end in verl.
"""

import linecache
import sys
from types import FrameType

TRAINERS, LOOP = "verl.trainer.ppo.v1.", "fit"
"""The package of verl's trainers, and their method that loops over the steps."""


class PhaseWatch:
    """Measures how long verl's trainer stays at one line of a step.

    A trainer that looks for prompts does not count as waiting.
    """

    def __init__(self) -> None:
        self._at: tuple[FrameType, int, int] | None = None
        self._seconds, self._looks = 0.0, 0

    def looked(self) -> None:
        """Note that the trainer looks for finished prompts."""
        self._looks += 1

    def look(self, passed: float) -> tuple[str, float]:
        """Return the trainer's line and its seconds there; ``passed`` seconds went by since the last look."""
        frame = _trainer()
        at = None if frame is None else (frame, frame.f_lasti, self._looks)
        self._seconds = self._seconds + passed if at == self._at else 0.0
        self._at = at  # that keeps the frame, so another call of the same method is never taken for this one
        if frame is None:
            return "", 0.0
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{frame.f_code.co_name}: {line}", self._seconds


def _trainer() -> FrameType | None:
    """Return the innermost frame of verl's trainers within a step; None outside of their loop."""
    for thread in sys._current_frames().values():
        innermost: FrameType | None = None
        frame: FrameType | None = thread
        while frame is not None:
            if str(frame.f_globals.get("__name__")).startswith(TRAINERS):
                innermost = innermost or frame
                if frame.f_code.co_name == LOOP:
                    return innermost
            frame = frame.f_back
    return None
