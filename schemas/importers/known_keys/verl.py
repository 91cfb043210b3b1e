"""Keys of verl."""

from schemas.importers.known_keys.trees import list_keys

KEYS = list_keys(
    {
        "": "ulysses_sequence_parallel_size use_remove_padding",
        "actor_rollout_ref": "hybrid_engine nccl_timeout",
        "actor_rollout_ref.actor": """
calculate_entropy calculate_sum_pi_squared clip_ratio clip_ratio_c clip_ratio_high clip_ratio_low data_loader_seed
entropy_checkpointing entropy_coeff entropy_from_logits_with_chunking freeze_vision_tower grad_clip kl_loss_coef
kl_loss_type load_weight loss_agg_mode loss_scale_factor ppo_epochs ppo_max_token_len_per_gpu ppo_micro_batch_size
ppo_micro_batch_size_per_gpu ppo_mini_batch_size rollout_n shuffle strategy sum_pi_squared_checkpointing tau_neg
tau_pos ulysses_sequence_parallel_size use_dynamic_bsz use_fused_kernels use_kl_loss use_prefix_grouper
use_remove_padding use_torch_compile
""",
        "actor_rollout_ref.actor.checkpoint": "async_save load_contents save_contents",
        "actor_rollout_ref.actor.fsdp_config": """
dtype entropy_checkpointing entropy_from_logits_with_chunking forward_only forward_prefetch fsdp_size full_determinism
model_dtype offload_policy optimizer_offload param_offload reshard_after_forward seed strategy
ulysses_sequence_parallel_size use_orig_params use_torch_compile
""",
        "actor_rollout_ref.actor.fsdp_config.wrap_policy": "min_num_params",
        "actor_rollout_ref.actor.megatron": "**",
        "actor_rollout_ref.actor.profiler": "**",
        "actor_rollout_ref.actor.optim": """
betas clip_grad lr lr_decay_steps lr_decay_style lr_scheduler_type lr_warmup_init lr_warmup_steps
lr_warmup_steps_ratio lr_wsd_decay_steps lr_wsd_decay_style min_lr min_lr_ratio num_cycles optimizer optimizer_impl
override_optimizer_config total_training_steps use_checkpoint_opt_param_scheduler warmup_style weight_decay
weight_decay_incr_style
""",
        "actor_rollout_ref.actor.policy_loss": """
clip_cov_lb clip_cov_ratio clip_cov_ub kl_cov_ratio loss_mode ppo_kl_coef
""",
        "actor_rollout_ref.actor.router_replay": "mode record_file replay_file",
        "actor_rollout_ref.model": """
custom_chat_template enable_activation_offload enable_gradient_checkpointing exclude_modules external_lib
hf_config_path lora_adapter_path lora_alpha lora_rank override_config path target_modules tokenizer_path
trust_remote_code use_fused_kernels use_liger use_remove_padding use_shm
""",
        "actor_rollout_ref.model.fused_kernel_options": "impl_backend",
        "actor_rollout_ref.model.lora": """
a2a_experimental adapter_path alpha dropout dropout_position dtype exclude_modules freeze_language_model
freeze_vision_model freeze_vision_projection lora_A_init_method lora_B_init_method merge rank target_modules type
""",
        "actor_rollout_ref.model.mtp": """
detach_encoder enable enable_rollout enable_train method mtp_loss_scaling_factor num_speculative_tokens
speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens speculative_num_steps
""",
        "actor_rollout_ref.model.override_config": "model_config",
        "actor_rollout_ref.model.override_config.moe_config": "freeze_moe_router",
        "actor_rollout_ref.model.tiled_mlp": "enabled num_shards",
        "actor_rollout_ref.ref": """
entropy_checkpointing entropy_from_logits_with_chunking load_weight log_prob_max_token_len_per_gpu
log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz rollout_n strategy
ulysses_sequence_parallel_size use_torch_compile
""",
        "actor_rollout_ref.ref.fsdp_config": """
dtype entropy_checkpointing entropy_from_logits_with_chunking forward_only forward_prefetch fsdp_size full_determinism
model_dtype offload_policy optimizer_offload param_offload reshard_after_forward seed strategy
ulysses_sequence_parallel_size use_orig_params use_torch_compile
""",
        "actor_rollout_ref.ref.fsdp_config.wrap_policy": "min_num_params",
        "actor_rollout_ref.ref.router_replay": "mode record_file replay_file",
        "actor_rollout_ref.rollout": """
calculate_log_probs cudagraph_capture_sizes data_parallel_size disable_log_stats do_sample dtype
enable_chunked_prefill enable_prefix_caching enable_rollout_routing_replay enforce_eager expert_parallel_size
free_cache_engine gpu_memory_utilization ignore_eos layered_summon load_format log_prob_max_token_len_per_gpu
log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz logprobs_mode max_model_len
max_num_batched_tokens max_num_seqs mode mtp multi_stage_wake_up n name over_sample_rate pipeline_model_parallel_size
prompt_length quantization quantization_config_file response_length scheduling_policy skip_dump_dir skip_rollout
skip_tokenizer_init temperature tensor_model_parallel_size top_k top_p
""",
        "actor_rollout_ref.rollout.agent": "agent_loop_config_path default_agent_loop num_workers",
        "actor_rollout_ref.rollout.agent.custom_async_server": "name path",
        "actor_rollout_ref.rollout.checkpoint_engine": "backend engine_kwargs update_weights_bucket_megabytes",
        "actor_rollout_ref.rollout.engine_kwargs": "sglang trtllm vllm",
        "actor_rollout_ref.rollout.layer_name_map": "gate_proj_layer_name qkv_layer_name",
        "actor_rollout_ref.rollout.multi_turn": """
enable format interaction_config_path max_assistant_turns max_parallel_calls max_tool_response_length max_user_turns
num_repeat_rollouts tokenization_sanity_check_mode tool_config_path tool_response_truncate_side
use_inference_chat_template
""",
        "actor_rollout_ref.rollout.prometheus": "enable file port served_model_name",
        "actor_rollout_ref.rollout.trace": "backend max_samples_per_step_per_worker token2text",
        "actor_rollout_ref.rollout.val_kwargs": "do_sample n temperature top_k top_p",
        "algorithm": """
adv_estimator gamma kl_penalty lam rollout_is rollout_is_level rollout_is_mode rollout_is_threshold
rollout_is_threshold_lower rollout_is_veto_threshold norm_adv_by_std_in_grpo use_kl_in_reward use_pf_ppo
""",
        "algorithm.filter_groups": "enable max_num_gen_batches metric",
        "algorithm.kl_ctrl": "horizon kl_coef target_kl type",
        "algorithm.pf_ppo": "reweight_method weight_pow",
        "algorithm.rollout_correction": """
bypass_mode loss_type rollout_is rollout_is_batch_normalize rollout_is_threshold rollout_rs rollout_rs_threshold
""",
        "critic": """
cliprange_value data_loader_seed enable forward_max_token_len_per_gpu forward_micro_batch_size
forward_micro_batch_size_per_gpu grad_clip load_weight loss_agg_mode nccl_timeout ppo_epochs ppo_max_token_len_per_gpu
ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_mini_batch_size rollout_n shuffle strategy
ulysses_sequence_parallel_size use_dynamic_bsz
""",
        "critic.checkpoint": "async_save load_contents save_contents",
        "critic.model": """
enable_activation_offload enable_gradient_checkpointing external_lib lora_alpha lora_rank override_config path
target_modules tokenizer_path trust_remote_code use_remove_padding use_shm
""",
        "critic.model.fsdp_config": """
dtype entropy_checkpointing entropy_from_logits_with_chunking forward_only forward_prefetch fsdp_size full_determinism
model_dtype offload_policy optimizer_offload param_offload reshard_after_forward seed strategy
ulysses_sequence_parallel_size use_orig_params use_torch_compile
""",
        "critic.model.fsdp_config.wrap_policy": "min_num_params",
        "critic.model.lora": """
a2a_experimental adapter_path alpha dropout dropout_position dtype exclude_modules freeze_language_model
freeze_vision_model freeze_vision_projection lora_A_init_method lora_B_init_method rank target_modules type
""",
        "critic.model.override_config": "model_config",
        "critic.model.override_config.moe_config": "freeze_moe_router",
        "critic.model.tiled_mlp": "enabled num_shards",
        "critic.optim": """
betas clip_grad lr lr_decay_steps lr_decay_style lr_scheduler_type lr_warmup_init lr_warmup_steps
lr_warmup_steps_ratio lr_wsd_decay_steps lr_wsd_decay_style min_lr min_lr_ratio num_cycles optimizer optimizer_impl
override_optimizer_config total_training_steps use_checkpoint_opt_param_scheduler warmup_style weight_decay
weight_decay_incr_style
""",
        "custom_reward_function": "name path",
        "data": """
gen_batch_size
apply_chat_template_kwargs dataloader_num_workers filter_overlong_prompts filter_overlong_prompts_workers image_key
image_patch_size max_prompt_length max_response_length prompt_key return_full_prompt return_multi_modal_inputs
return_raw_chat return_raw_input_ids reward_fn_key seed shuffle tokenizer tool_config_path train_batch_size
train_files train_max_samples truncation trust_remote_code use_shm val_batch_size val_files val_max_samples
validation_shuffle video_key balance_dp_token chat_template max_length micro_batch_size micro_batch_size_per_gpu
prompt_dict_keys response_dict_keys response_key messages_key tools_key enable_thinking_key max_token_len_per_gpu
pad_mode use_dynamic_bsz ignore_input_ids_mismatch
""",
        "data.custom_cls": "name path",
        "data.datagen": "name path",
        "data.multiturn": "enable enable_thinking_key messages_key tools_key",
        "data.sampler": "class_name class_path",
        "model": """
enable_gradient_checkpointing external_lib lora_alpha lora_rank partial_pretrain strategy target_modules
trust_remote_code use_liger use_shm path use_remove_padding lora_dropout
""",
        "model.fsdp_config": "cpu_offload model_dtype offload_params",
        "model.fsdp_config.wrap_policy": "min_num_params",
        "optim": """
betas clip_grad lr lr_decay_style lr_scheduler lr_scheduler_type lr_warmup_init lr_warmup_steps lr_warmup_steps_ratio
min_lr min_lr_ratio num_cycles optimizer optimizer_impl override_optimizer_config total_training_steps warmup_style
weight_decay
""",
        "engine": """
dtype entropy_checkpointing entropy_from_logits_with_chunking forward_only forward_prefetch fsdp_size full_determinism
model_dtype offload_policy optimizer_offload param_offload reshard_after_forward seed strategy
ulysses_sequence_parallel_size use_orig_params use_torch_compile
""",
        "engine.wrap_policy": "min_num_params",
        "checkpoint": "load_contents save_contents",
        "ray_kwargs": "timeline_json_file",
        "ray_kwargs.ray_init": "num_cpus",
        "reward_manager": "name source",
        "reward_manager.module": "name path",
        "reward_model": """
enable enable_resource_pool forward_max_token_len_per_gpu launch_reward_fn_async load_weight max_length
micro_batch_size micro_batch_size_per_gpu n_gpus_per_node nccl_timeout nnodes num_workers reward_loop_class_name
reward_loop_module_path reward_loop_source reward_manager strategy ulysses_sequence_parallel_size use_dynamic_bsz
use_reward_loop
""",
        "reward_model.overlong_buffer": "enable len log penalty_factor",
        "reward_model.reward_kwargs": "max_resp_len",
        "reward_model.reward_kwargs.overlong_buffer_cfg": "enable len log penalty_factor",
        "reward_model.model": """
external_lib input_tokenizer override_config path trust_remote_code use_fused_kernels use_remove_padding use_shm
""",
        "reward_model.model.fsdp_config": "forward_prefetch fsdp_size param_offload reshard_after_forward",
        "reward_model.model.fsdp_config.wrap_policy": "min_num_params",
        "reward_model.rollout": """
cudagraph_capture_sizes data_parallel_size disable_log_stats dtype enable_chunked_prefill enable_prefix_caching
enforce_eager engine_kwargs expert_parallel_size free_cache_engine gpu_memory_utilization limit_images load_format
max_model_len max_num_batched_tokens max_num_seqs name prompt_length response_length skip_tokenizer_init
tensor_model_parallel_size
""",
        "reward_model.sandbox_fusion": "max_concurrent memory_limit_mb url",
        "trainer": """
balance_batch critic_warmup default_hdfs_dir default_local_dir del_local_ckpt_after_load device esi_redundant_time
experiment_name log_val_generations logger max_actor_ckpt_to_keep max_critic_ckpt_to_keep n_gpus_per_node nnodes
project_name ray_wait_register_center_timeout resume_from_path resume_mode rollout_data_dir save_freq test_freq
total_epochs total_training_steps use_legacy_worker_impl val_before_train val_only validation_data_dir
max_ckpt_to_keep seed
""",
        "trainer.checkpoint": "load_contents save_contents",
        "transfer_queue": "enable",
    }
)
"""Of the trainers of PPO and of fine-tuning."""
