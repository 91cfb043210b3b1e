"""Keys of LLaMA-Factory's second configuration format (v1)."""

from schemas.importers.known_keys.trees import list_keys

PLUGINS = "init_config peft_config kernel_config quant_config dist_config optim_config lr_scheduler_config"
KEYS = list_keys(
    {
        "": f"""
model custom_chat_template template trust_remote_code flash_attn model_class {PLUGINS}
train_dataset eval_dataset
output_dir micro_batch_size global_batch_size cutoff_len learning_rate num_train_epochs max_steps max_grad_norm bf16
batching_strategy batching_workers enable_activation_checkpointing dp_size cp_size cp_mode mp_replicate_size
mp_shard_size dist_timeout seed full_determinism resume_from_checkpoint save_steps save_epochs save_ckpt_as_hf
save_total_limit logging_steps pref_loss pref_beta pref_ftx simpo_gamma dpo_label_smoothing ld_alpha
sample_backend max_new_tokens
""",
        "peft_config": """
name r lora_alpha lora_dropout target_modules use_rslora use_dora modules_to_save adapter_name_or_path export_dir
export_size export_hub_model_id infer_dtype export_legacy_format freeze_trainable_layers freeze_trainable_modules
freeze_extra_modules cast_trainable_params_to_fp32
""",
        "quant_config": "name quantization_bit compute_dtype double_quantization quantization_type",
        "dist_config": """
name config_file dcp_path mixed_precision reshard_after_forward offload_params pin_memory ep_size ep_dispatcher
""",
        "optim_config": "name lr wd weight_decay betas momentum nesterov ns_steps adamw_betas adamw_eps",
        "kernel_config": "name include_kernels chunk_size",
        "init_config": "name",
        "lr_scheduler_config": "**",
    }
)
