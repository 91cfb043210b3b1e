"""Keys of `trl sft | dpo | kto | grpo | rloo | reward`."""

from schemas.importers.known_keys.trees import list_keys

KEYS = list_keys(
    {
        "": """
accelerate_config activation_offloading assistant_only_loss attn_implementation base_model_attribute_name beta
dataset_prompt_column system_prompt
bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation cast_lm_head_to_fp32 center_rewards_coefficient
chars_per_token chat_template_kwargs chat_template_path completion_only_loss config dataset_config dataset_kwargs
dataset_mixer dataset_name dataset_num_proc dataset_streaming dataset_test_split dataset_text_field
dataset_train_split datasets delta desirable_weight disable_dropout discopop_tau ds3_gather_for_generation dtype
entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target env eos_token epsilon epsilon_high
eval_packing f_alpha_divergence_coef f_divergence_type formatting_func generate_during_eval generation_batch_size
generation_kwargs guided_decoding_regex ignore_bias_buffers importance_sampling_level label_pad_token_id
label_smoothing ld_alpha load_in_4bit load_in_8bit log_completions log_completions_hub_repo log_multimodal
log_unique_prompts lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_target_parameters
lora_task_type loss_type loss_weights mask_truncated_completions max_completion_length max_length max_prompt_length
max_seq_length max_target_length max_tool_calling_iterations min_p model_adapter_name model_init_kwargs
model_name_or_path model_revision multi_objective_aggregation normalize_advantages num_completions_to_print
num_generations num_generations_eval num_iterations num_machines num_of_sequences num_processes
off_policy_mask_threshold packing packing_strategy pad_to_multiple_of pad_token padding_free padding_value
precompute_ref_batch_size precompute_ref_log_probs ref_adapter_name ref_model_mixup_alpha ref_model_sync_steps
reference_free repetition_penalty reward_clip_range reward_funcs reward_model_name_or_path reward_weights
router_aux_loss_coef rpo_alpha sapo_temperature_neg sapo_temperature_pos scale_rewards shuffle_dataset
steps_per_generation streaming sync_ref_model temperature test_split_size tools top_entropy_quantile top_k top_p
torch_dtype transformers_continuous_batching_config truncation_mode trust_remote_code undesirable_weight
use_adaptive_entropy use_bias_correction_kl use_bnb_nested_quant use_dora use_liger_loss use_logits_to_keep use_peft
use_rslora use_transformers_continuous_batching use_transformers_paged use_vllm use_weighting vespo_k_neg vespo_k_pos
vespo_lambda_neg vespo_lambda_pos vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port
vllm_guided_decoding_regex vllm_importance_sampling_cap vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode
vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port
vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size wandb_entity wandb_log_unique_prompts
wandb_project
""",
        "datasets.*": "columns data_dir data_files fraction name path split",
        "dataset_mixture": "seed test_split_size",
        "dataset_mixture.datasets.*": "columns config id split weight",
        "dataset_mixture.datasets.*.columns": "*",
        "datasets.*.columns": "*",
        "datasets.*.data_files": "*",
    }
)
"""From TRL 1.16, without those of transformers."""
