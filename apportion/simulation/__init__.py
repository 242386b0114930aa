"""Simulations on populations of prompts whose truth is known. Nothing is trained, so no simulation says what is learnt.

``Population`` holds the truth, and ``sampler_at`` samples it for ``collect``. ``make_rule`` reads a rule from a short
text. ``simulate`` compares rules, and ``simulated_record`` returns the record of a simulated run. ``check_allocator``
checks a rule of your own.
"""

from apportion.simulation.contract import check_allocator
from apportion.simulation.course import Seconds, SimulatedStep, course
from apportion.simulation.measures import StepMeasures, measure
from apportion.simulation.mixture import SHAPES, BetaMixture, fit_mixture, named_shape
from apportion.simulation.population import Population
from apportion.simulation.record import simulated_record, true_success
from apportion.simulation.rules import Oracle, SimulatedRule, make_predictor, make_rule
from apportion.simulation.sampler import Outcomes, PopulationSampler, draw_outcomes, sampler_at
from apportion.simulation.simulate import RuleCourse, SimulatedEstimate, Simulation, estimate, simulate

__all__ = [
    "SHAPES",
    "BetaMixture",
    "Oracle",
    "Outcomes",
    "Population",
    "PopulationSampler",
    "RuleCourse",
    "Seconds",
    "SimulatedEstimate",
    "SimulatedRule",
    "SimulatedStep",
    "Simulation",
    "StepMeasures",
    "check_allocator",
    "course",
    "draw_outcomes",
    "estimate",
    "fit_mixture",
    "make_predictor",
    "make_rule",
    "measure",
    "named_shape",
    "sampler_at",
    "simulate",
    "simulated_record",
    "true_success",
]
