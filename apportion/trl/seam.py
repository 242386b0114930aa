"""All undocumented names of TRL and transformers that this package uses.

They have these meanings in TRL 1.0.0 to 1.16.0 with transformers 5.10. A test looks for them in the installed versions.
"""

TRAINER_METHODS = {
    "_generate_and_score_completions": ("inputs",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
    "_prepare_inputs": ("generation_batch",),
    "compute_loss": ("model", "inputs", "return_outputs", "num_items_in_batch"),
    "_get_train_sampler": ("dataset",),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_get_output_dir": ("trial",),
}
"""Methods of both trainers with their first parameters after self. All but the third and the last are overridden."""

TRAINER_ATTRIBUTES = (
    "num_generations",
    "reward_weights",
    "reward_func_names",
    "temperature",
    "_metrics",
    "_logs",
    "_step",
    "_buffered_inputs",
)
"""Attributes of both trainers after construction. ``num_generations`` is 1 while a round runs."""

GRPO_ATTRIBUTES = ("loss_type", "scale_rewards", "multi_objective_aggregation", "beta")
RLOO_ATTRIBUTES = ("beta", "reward_clip_range", "normalize_advantages")
