"""Who gets how many rollouts: one file a rule, one registry line each."""

from __future__ import annotations

from apportion.allocators.ar3po import AR3PO
from apportion.allocators.base import Allocator
from apportion.allocators.dapo import DAPO
from apportion.allocators.hora import HORA
from apportion.allocators.inverse_accuracy import InverseAccuracy
from apportion.allocators.inverse_variance import InverseVariance
from apportion.allocators.neyman import Neyman
from apportion.allocators.reinforce_ada import ReinforceAda
from apportion.allocators.select import Select
from apportion.allocators.solver import spend
from apportion.allocators.uniform import Even, Uniform
from apportion.allocators.vip import VIP

ALLOCATORS: dict[str, type[Allocator]] = {
    rule.name: rule
    for rule in (
        Uniform,
        Even,
        VIP,
        HORA,
        AR3PO,
        DAPO,
        ReinforceAda,
        InverseAccuracy,
        InverseVariance,
        Neyman,
        Select,
    )
}

__all__ = [
    "ALLOCATORS",
    "AR3PO",
    "DAPO",
    "HORA",
    "VIP",
    "Allocator",
    "Even",
    "InverseAccuracy",
    "InverseVariance",
    "Neyman",
    "ReinforceAda",
    "Select",
    "Uniform",
    "spend",
]
