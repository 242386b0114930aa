"""From the text of a completion to an answer that can be counted: ``extract`` reads it, an equivalence sorts it."""

from __future__ import annotations

from apportion.verifiers.equivalence import EQUIVALENCES, Equivalence, ExactMatch, MathVerify, classes
from apportion.verifiers.extraction import EXTRACTORS, extract

__all__ = ["EQUIVALENCES", "EXTRACTORS", "Equivalence", "ExactMatch", "MathVerify", "classes", "extract"]
