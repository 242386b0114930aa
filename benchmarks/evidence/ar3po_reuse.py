"""AR3PO with and without reuse where reuse reaches more groups, as in benchmarks/ar3po.toml, paired by seed."""

from benchmarks.evidence.learning import learn

MEDIUM = {
    "base": "medium",
    "problems": 128,
    "prompts_per_step": 16,
    "rollouts": 3840,
    "estimator": "grpo",
    "learning_rate": 5e-4,
    "evaluate_every": 384,
}
REUSE = {"reuse": "stop_gradient", "replay": "replay", "staged": "none"}


def paired(seeds):
    """Return the area of AR3PO with and without reuse, by rule and seed."""
    return {
        name: {"area": [learn({"name": "ar3po", "reuse": reuse}, seed, MEDIUM)["area"] for seed in seeds]}
        for name, reuse in REUSE.items()
    }
