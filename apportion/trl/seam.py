"""All undocumented names of TRL and transformers that this package uses.

They have these meanings in TRL 1.0.0 to 1.16.0 with transformers 5.10. A test looks for them in the installed versions.
"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _methods(text: str) -> dict[str, tuple[str, ...]]:
    """Return the first parameters after self of the methods in ``text``, by name."""
    lines = map(_names, text.strip().splitlines())
    return {name: tuple(parameters) for name, *parameters in lines}


TRAINER_METHODS = _methods("""
_generate_and_score_completions inputs
_generate prompts
_calculate_rewards inputs prompts completions completion_ids_list
_get_per_token_logps_and_entropies model input_ids attention_mask logits_to_keep batch_size
_prepare_inputs generation_batch
training_step model inputs num_items_in_batch
compute_loss model inputs return_outputs num_items_in_batch
_get_train_sampler dataset
_set_signature_columns_if_needed
_save_checkpoint model trial
_load_optimizer_and_scheduler checkpoint
_get_output_dir trial
""")
"""Methods of both trainers with their first parameters after self.

All but the last are overridden, ``_generate`` and ``_get_per_token_logps_and_entropies`` only within a round. With
``beta`` RLOO calls the latter twice in a round: for the policy, then for the reference."""

TRAINER_ATTRIBUTES = _names("""
num_generations num_generations_eval reward_weights reward_func_names reward_funcs temperature _metrics _logs _step
_buffered_inputs _current_train_step_time _pending_extra_logs _pending_metrics
""")
"""Attributes of both trainers after construction. ``num_generations`` is 1 while a round runs."""

GRPO_ATTRIBUTES = ("loss_type", "scale_rewards", "multi_objective_aggregation", "beta")
RLOO_ATTRIBUTES = ("beta", "reward_clip_range", "normalize_advantages")

ASYNC_METHODS = _methods("""
get_train_dataloader
_save_checkpoint model trial
_load_optimizer_and_scheduler checkpoint
""")
"""Methods of ``trl.experimental.async_grpo.AsyncGRPOTrainer`` of TRL 1.16 that are overridden. Beside them its classes
``RolloutQueueDataset``, ``FixedCountBatcher``, ``DataCollatorForRollout``, ``RolloutGroup`` and ``RolloutSample`` are
used."""
ASYNC_ATTRIBUTES = _names("""
_metrics _rollout_dataset _trained_groups _groups_before_resume _is_vlm _lora_sync _lora_name model_version
""")
"""Its attributes after construction. ``model_version`` is 1 at the first step, and one more after each."""
ASYNC_WORKER_METHODS = _methods("""
start
stop
check_health stale_after_s
update_model_version model_version
""")
"""Methods of its ``AsyncRolloutWorker``. ``_loop_cls`` is what its process calls with ``_loop_kwargs``."""
ASYNC_LOOP_METHODS = _methods("""
_run_loops stop_event
_generate_loop stop_event
_repeat_iterator
_generate_one prompt tool_dict tools group_id
_score_group group
""")
"""Methods of its ``_AsyncRolloutLoop``. ``_groups_to_score`` is the queue between its two loops."""
