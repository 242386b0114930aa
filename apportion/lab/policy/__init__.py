"""The policy, a tiny Qwen2: bases, rollouts, exact success, and what other trainers take of them."""
