"""Keys of oumi's training configurations."""

from schemas.importers.known_keys.trees import list_keys

KEYS = list_keys(
    {
        "data.test": """
collator_kwargs collator_name datasets mixture_strategy pack seed stream target_col train_target use_torchdata
use_async_dataset
""",
        "data.test.datasets.*": """
dataset_kwargs dataset_name dataset_path mixture_proportion sample_count seed shuffle shuffle_buffer_size split subset
transform_num_workers trust_remote_code
""",
        "data.test.datasets.*.dataset_kwargs": "**",
        "data.train": """
collator_kwargs collator_name datasets mixture_strategy pack seed stream target_col train_target use_torchdata
use_async_dataset
""",
        "data.train.datasets.*": """
dataset_kwargs dataset_name dataset_path mixture_proportion sample_count seed shuffle shuffle_buffer_size split subset
transform_num_workers trust_remote_code
""",
        "data.train.datasets.*.dataset_kwargs": "**",
        "data.validation": """
collator_kwargs collator_name datasets mixture_strategy pack seed stream target_col train_target use_torchdata
use_async_dataset
""",
        "data.validation.datasets.*": """
dataset_kwargs dataset_name dataset_path mixture_proportion sample_count seed shuffle shuffle_buffer_size split subset
transform_num_workers trust_remote_code
""",
        "data.validation.datasets.*.dataset_kwargs": "**",
        "deepspeed": """
activation_checkpointing allgather_bucket_size allgather_partitions contiguous_gradients deepspeed_config_path
enable_deepspeed gradient_accumulation_steps gradient_clipping memory_efficient_linear offload_optimizer offload_param
overlap_comm precision reduce_bucket_size reduce_scatter round_robin_gradients
stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters stage3_max_reuse_distance
stage3_param_persistence_threshold stage3_prefetch_bucket_size steps_per_print sub_group_size train_batch_size
train_micro_batch_size_per_gpu wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
zero_stage
""",
        "deepspeed.activation_checkpointing": "**",
        "deepspeed.offload_optimizer": "**",
        "deepspeed.offload_param": "**",
        "fsdp": """
auto_wrap_policy backward_prefetch cpu_offload enable_fsdp forward_prefetch min_num_params mixed_precision
sharding_strategy state_dict_type sync_module_states transformer_layer_cls use_orig_params
""",
        "model": """
adapter_model attn_implementation chat_template chat_template_kwargs compile device_map enable_liger_kernel
freeze_layers load_pretrained_weights model_kwargs model_max_length model_name model_revision processor_kwargs
shard_for_eval tokenizer_kwargs tokenizer_name tokenizer_pad_token tool_call_parser torch_dtype_str trust_remote_code
""",
        "model.chat_template_kwargs": "**",
        "model.model_kwargs": "**",
        "model.processor_kwargs": "**",
        "model.tokenizer_kwargs": "**",
        "peft": """
bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type llm_int8_skip_modules lora_alpha lora_bias
lora_dropout lora_exclude_modules lora_init_weights lora_modules_to_save lora_r lora_target_modules
lora_target_parameters lora_task_type peft_save_mode q_lora q_lora_bits use_bnb_nested_quant
""",
        "training": """
adam_beta1 adam_beta2 adam_epsilon compile data_seed dataloader_main_process_only dataloader_num_workers
dataloader_persistent_workers dataloader_prefetch_factor ddp_find_unused_parameters dep_log_level
empty_device_cache_steps enable_gradient_checkpointing enable_mlflow enable_tensorboard enable_wandb eval_steps
eval_strategy full_determinism gkd gold gradient_accumulation_steps gradient_checkpointing_kwargs grpo
include_alternative_mfu_metrics include_performance_metrics label_ignore_index learning_rate log_examples log_level
log_model_summary logging_dir logging_first_step logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type
max_grad_norm max_steps metrics_function mixed_precision_dtype nccl_default_timeout_minutes num_train_epochs optimizer
output_dir per_device_eval_batch_size per_device_train_batch_size profiler resume_from_checkpoint
reward_function_kwargs reward_functions run_name save_epoch save_final_model save_steps seed sgd_momentum telemetry
trainer_kwargs trainer_type try_resume_from_last_checkpoint use_deterministic use_peft verl_config_overrides
warmup_ratio warmup_steps weight_decay
""",
        "training.gkd": """
beta disable_dropout lmbda max_new_tokens seq_kd teacher_model_init_kwargs teacher_model_name_or_path temperature
""",
        "training.gold": """
beta disable_dropout lmbda max_completion_length seq_kd teacher_model_init_kwargs teacher_model_name_or_path
teacher_tokenizer_name_or_path temperature top_k top_p uld_crossentropy_weight uld_distillation_weight
uld_hybrid_matched_weight uld_hybrid_unmatched_weight uld_skip_student_eos uld_skip_teacher_eos
uld_student_temperature uld_teacher_temperature uld_use_hybrid_loss use_extended_uld use_transformers_paged
use_uld_loss use_vllm vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_guided_decoding_regex vllm_mode
vllm_server_host vllm_server_port vllm_server_timeout vllm_sync_frequency vllm_tensor_parallel_size
""",
        "training.gradient_checkpointing_kwargs": "**",
        "training.grpo": """
epsilon log_completions max_completion_length max_prompt_length model_init_kwargs num_generations
remove_unused_columns repetition_penalty rollout_function temperature use_vllm vllm_gpu_memory_utilization vllm_mode
""",
        "training.grpo.model_init_kwargs": "**",
        "training.lr_scheduler_kwargs": "**",
        "training.profiler": """
enable_cpu_profiling enable_cuda_profiling profile_memory record_shapes row_limit save_dir schedule with_flops
with_modules with_stack
""",
        "training.profiler.schedule": "**",
        "training.reward_function_kwargs": "**",
        "training.telemetry": "collect_telemetry_for_all_ranks telemetry_dir track_gpu_temperature",
        "training.trainer_kwargs": "**",
        "training.verl_config_overrides": "**",
    }
)
"""Dotted keys; `*` is any number, `**` everything below."""
