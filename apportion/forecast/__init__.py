"""What the first epoch will be, from a few rollouts of a sample of prompts: dead groups, their price, what would help.

``RateSample`` holds the outcomes, ``fit_rates`` estimates the distribution of success rates without a shape, and
``forecast`` says what follows. ``probe_of`` reads the sample from a ``RunRecord``.
"""

from apportion.forecast.forecast import ESTIMATORS, Dead, EpochCost, Forecast, MoreProbes, Split, forecast
from apportion.forecast.probe import Probe, probe_of
from apportion.forecast.rates import RATES, RateSample, fit_rates

__all__ = [
    "ESTIMATORS",
    "RATES",
    "Dead",
    "EpochCost",
    "Forecast",
    "MoreProbes",
    "Probe",
    "RateSample",
    "Split",
    "fit_rates",
    "forecast",
    "probe_of",
]
