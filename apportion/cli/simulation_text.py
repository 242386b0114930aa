"""The result of a simulation as a text table, and as JSON."""

from dataclasses import fields
from typing import Any

from apportion.cli.lines import wrapped
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.simulation import Simulation

SERIES = ("variance", "uniform", "optimum", "mixed", "hits", "rollouts", "tokens")
SHAPE = ("weights", "alpha", "beta")
PARTS = ("choose", "predict", "plan", "observe")

NOTES = (
    "variance: RLOO variance at the true probabilities, over that of an even split of the same rollouts; below 1 is a "
    "gain. regret: share by which it is above the least possible. noise: variance x rollouts over signal^2, relative "
    'to uniform. "-": the counts depend on outcomes, so the variance has no closed form.',
    "mixed, hits: shares of the groups with both rewards, and with a right rollout. spurious: with both rewards by "
    "verifier errors alone. seen: share of the prompts that had rollouts. ms: what the decisions of a step took, "
    "without sampling. Nothing is trained, so nothing here is learning.",
)


def simulation_text(found: Simulation) -> str:
    """Return two tables of a simulation with one line a rule, and what their columns mean."""
    people = found.population
    groups = ["mixed", "hits", *(["spurious"] if people.false_positive or people.false_negative else [])]
    head = f"{people.prompts:,} prompts, {found.steps} steps of {found.prompts_per_step}, seeds {len(found.seeds)}"
    achieved = [
        f"{name} correlate {sum(values) / len(values):.2f} with the log-odds"
        for name, values in (("embeddings", found.embedding_correlations), ("known rates", found.rate_correlations))
        if any(values)
    ]
    variances = [
        [rule, *map(str, (found.variance(rule), found.regret(rule), found.noise(rule)))] for rule in found.courses
    ]
    spent = [
        [
            rule,
            *(str(found.share(rule, name)) for name in groups),
            *(f"{found.average(rule, name).mean:,.0f}" for name in ("rollouts", "tokens")),
            f"{found.coverage(rule).mean:.3f}",
            f"{1000 * sum(found.average(rule, part).mean for part in PARTS):,.1f}",
        ]
        for rule in found.courses
    ]
    parts = ["; ".join([head, *achieved])]
    for names, rows, note in zip(
        (["variance", "regret", "noise"], [*groups, "rollouts", "tokens", "seen", "ms"]),
        (variances, spent),
        NOTES,
        strict=True,
    ):
        parts += [text_table(rows, ["rule", *names]), "\n".join(wrapped(note))]
    return "\n\n".join(parts)


def simulation_json(found: Simulation) -> str:
    """Return a simulation as one JSON object: settings, and for each rule its estimates, seconds and series by step."""
    people = found.population
    settings = {each.name: getattr(people, each.name) for each in fields(people) if each.name != "seed"}
    content = {
        "population": settings | {"shape": {name: getattr(people.shape, name).tolist() for name in SHAPE}},
        "steps": found.steps,
        "prompts_per_step": found.prompts_per_step,
        "rollouts_per_prompt": found.rollouts_per_prompt,
        "seeds": found.seeds,
        "embedding_correlations": found.embedding_correlations,
        "rate_correlations": found.rate_correlations,
        "rules": {rule: _rule(found, rule) for rule in found.courses},
    }
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
