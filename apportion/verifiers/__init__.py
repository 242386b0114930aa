"""Verifiers: completion and gold answer in, verdict out.

``check`` refuses questions that a verifier cannot verify, before anything is paid for. ``verdict`` then takes the text
of a completion, reads the answer that it states with an extractor of ``apportion.answers``, and compares it with gold.
"""

from apportion.verifiers.base import Verifier
from apportion.verifiers.function import Function
from apportion.verifiers.math import Math
from apportion.verifiers.stated import EM, Choice, Exact

VERIFIERS: dict[str, type[Verifier]] = {verifier.name: verifier for verifier in (Math, Exact, EM, Choice, Function)}
"""Every verifier by name."""

__all__ = ["EM", "VERIFIERS", "Choice", "Exact", "Function", "Math", "Verifier"]
