"""Verifiers: completion and gold answer in, verdict out. One file a verifier.

``check`` refuses questions that a verifier cannot verify, before anything is paid for. ``verdict`` then takes the text
of a completion, reads the answer that it states with an extractor of ``apportion.answers``, and compares it with gold.
"""

from apportion.verifiers.base import Verifier
from apportion.verifiers.choice import Choice
from apportion.verifiers.em import EM
from apportion.verifiers.exact import Exact
from apportion.verifiers.function import Function
from apportion.verifiers.math import Math

VERIFIERS: dict[str, type[Verifier]] = {verifier.name: verifier for verifier in (Math, Exact, EM, Choice, Function)}
"""Every verifier by name."""

__all__ = ["EM", "VERIFIERS", "Choice", "Exact", "Function", "Math", "Verifier"]
