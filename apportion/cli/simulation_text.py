"""The result of a simulation as a text table, and as JSON."""

from typing import Any

from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.simulation import Simulation

SERIES = ("variance", "uniform", "optimum", "mixed", "hits", "rollouts", "tokens")
PARTS = ("choose", "predict", "plan", "observe")

NOTES = """
variance: RLOO variance at the true probabilities, over that of an even split of the same rollouts; below 1 is a gain.
regret: share by which it is above the least possible. noise: variance x rollouts over signal^2, relative to uniform.
mixed, hits: shares of the groups with both rewards, and with a right rollout. spurious: with both rewards by verifier
errors alone. seen: share of the prompts that had rollouts. ms a step: what the decisions took, without sampling.
"-": the counts depend on outcomes, so the variance has no closed form. Nothing is trained, so nothing here is learning.
""".strip()


def simulation_text(found: Simulation, terminal: bool = False) -> str:
    """Return the table of a simulation with one line a rule, and what its columns mean."""
    rows, people = [], found.population
    groups = ["mixed", "hits", *(["spurious"] if people.false_positive or people.false_negative else [])]
    header = ["rule", "variance", "regret", "noise", *groups, "rollouts", "tokens", "seen", "ms a step"]
    for rule in found.courses:
        seconds = sum(found.average(rule, part).mean for part in PARTS)
        rows.append(
            [
                rule,
                str(found.variance(rule)),
                str(found.regret(rule)),
                str(found.noise(rule)),
                *(str(found.share(rule, name)) for name in groups),
                f"{found.average(rule, 'rollouts').mean:,.0f}",
                f"{found.average(rule, 'tokens').mean:,.0f}",
                f"{found.coverage(rule).mean:.3f}",
                f"{1000 * seconds:,.1f}",
            ]
        )
    head = f"{people.prompts:,} prompts, {found.steps} steps of {found.prompts_per_step}, seeds {len(found.seeds)}"
    achieved = [
        f"{name} correlate {_mean(values):.2f} with the log-odds"
        for name, values in (("embeddings", found.embedding_correlations), ("known rates", found.rate_correlations))
        if any(values)
    ]
    table = text_table(rows, header, align="l" + "r" * (len(header) - 1), terminal=terminal)
    return "\n\n".join(["; ".join([head, *achieved]), table, NOTES])


def simulation_json(found: Simulation) -> str:
    """Return a simulation as one JSON object: settings, and for each rule its estimates, seconds and series by step."""
    people = found.population
    shape = {name: getattr(people.shape, name).tolist() for name in ("weights", "alpha", "beta")}
    settings = {name: value for name, value in vars(people).items() if name in type(people).__dataclass_fields__}
    content: dict[str, Any] = {
        "population": settings | {"shape": shape},
        "steps": found.steps,
        "prompts_per_step": found.prompts_per_step,
        "rollouts_per_prompt": found.rollouts_per_prompt,
        "seeds": list(found.seeds),
        "embedding_correlations": list(found.embedding_correlations),
        "rate_correlations": list(found.rate_correlations),
        "rules": {rule: _rule(found, rule) for rule in found.courses},
    }
    del content["population"]["seed"]
    return json_text(content, indent=2)


def _rule(found: Simulation, rule: str) -> dict[str, Any]:
    estimates = {
        "variance_over_uniform": found.variance(rule),
        "regret": found.regret(rule),
        "noise_over_uniform": found.noise(rule),
        "mixed_per_rollout_over_uniform": found.mixed_per_rollout(rule),
        **{name: found.share(rule, name) for name in ("mixed", "spurious", "hits")},
        **{f"{name}_per_step": found.average(rule, name) for name in ("rollouts", "tokens", "prompts")},
        "coverage": found.coverage(rule),
        **{f"{part}_seconds": found.average(rule, part) for part in PARTS},
    }
    course = found.courses[rule]
    series = {name: course.of(name).mean(axis=0).tolist() for name in SERIES}
    series["coverage"] = course.coverage.mean(axis=0).tolist()
    return {**estimates, "by_step": series}


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
