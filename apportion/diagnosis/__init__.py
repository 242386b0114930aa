"""What a recorded run wasted, what could have been known before, and what would help.

``diagnose`` makes a ``Diagnosis`` of a ``RunRecord``. Each part of it has a file: one question, one answer. ``plain``
turns it into what JSON can hold.
"""

from apportion.diagnosis.advice import Advice, AdviceList, advice_of
from apportion.diagnosis.beliefs import Foresight, foresight_of
from apportion.diagnosis.coverage import RunCoverage, coverage_of
from apportion.diagnosis.diagnose import Diagnosis, diagnose
from apportion.diagnosis.drift import RateDrift, drift_of
from apportion.diagnosis.health import RunHealth, Sign, health_of
from apportion.diagnosis.phantoms import Phantoms, phantoms_of
from apportion.diagnosis.waste import Waste, waste_of
from apportion.runs.json_text import plain

__all__ = [
    "Advice",
    "AdviceList",
    "Diagnosis",
    "Foresight",
    "Phantoms",
    "RateDrift",
    "RunCoverage",
    "RunHealth",
    "Sign",
    "Waste",
    "advice_of",
    "coverage_of",
    "diagnose",
    "drift_of",
    "foresight_of",
    "health_of",
    "phantoms_of",
    "plain",
    "waste_of",
]
