"""Keys that several tools share and for which a recipe needs nothing, or that have no counterpart."""

from typing import TypeVar

Value = TypeVar("Value")
TRACKING = "MLflow and the report get all metrics; `track: [wandb]` and others as well"
FOLDERS = "every step has its own folder: `posttrain path STEP`"
SPEED = "changes speed or memory, not the result"
LOADING = "rows are read as a stream; nothing to set"
CHECKPOINTS = "checkpoints are kept while a step needs them: `save_steps`"
PUBLISH = "publish a finished model as docs/publishing.md describes"
DEVICE = "posttrain places steps on Ray nodes: `resources`"
RESUME = "`posttrain resume` continues from the last checkpoint"


def spread(value: Value, words: str) -> dict[str, Value]:
    """Return a map from every word of a text to one value."""
    return dict.fromkeys(words.split(), value)


HARMLESS: dict[str, str] = {
    **spread(
        TRACKING,
        """
report_to run_name with_tracking logging_first_step logging_strategy logging_nan_inf_filter log_level
log_level_replica log_on_each_node disable_tqdm include_num_input_tokens_seen include_tokens_per_second
plot_loss use_swanlab wandb_project wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model wandb_mode
wandb_project_name wandb_run_group wandb_log_unique_prompts trackio_space_id project use_wandb use_mlflow
use_comet use_tensorboard mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts
use_trackio trackio_project_name trackio_run_name comet_* swanlab_* log_completions num_completions_to_print
log_unique_prompts include_for_metrics include_inputs_for_metrics project_name experiment_name
""",
    ),
    **spread(
        FOLDERS,
        """
output_dir logging_dir overwrite_output_dir save_dir dataset_prepared_path
""",
    ),
    **spread(
        SPEED,
        """
flash_attention flash_attn attn_implementation sdp_attention xformers_attention eager_attention use_liger_kernel
liger_kernel_config enable_liger_kernel torch_compile torch_compile_backend torch_compile_mode tf32
gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* padding_free pad_to_multiple_of group_by_length
length_column_name dataloader_drop_last dataloader_pin_memory torch_empty_cache_steps auto_find_batch_size
eval_accumulation_steps fp16_backend half_precision_backend use_reentrant_gc low_cpu_mem_usage
activation_offloading use_liger_loss pad_to_sequence_len sample_packing_group_size sample_packing_bin_size
cache_implementation use_cache optim_target_modules liger_* flash_attn_* use_unsloth use_unsloth_gc
use_fast_tokenizer use_slow_tokenizer tokenizer_use_fast tokenizer_type model_type is_llama_derived_model
per_device_eval_batch_size eval_batch_size eval_do_concat_batches eval_on_start prediction_loss_only
bf16_full_eval fp16_full_eval train_sampling_strategy experimental_skip_move_to_device
""",
    ),
    **spread(
        LOADING,
        """
dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers dataset_num_proc
preprocessing_num_workers dataset_processes overwrite_cache remove_unused_columns streaming dataset_streaming
buffer_size preprocessing_batch_size cache_dir ddp_find_unused_parameters ddp_timeout ddp_bucket_cap_mb
ddp_broadcast_buffers accelerator_config data_shared_file_system dataset_shard_num dataset_shard_idx
dataset_keep_in_memory shuffle_merged_datasets shuffle_before_merging_datasets
average_tokens_across_devices tokenized_path
""",
    ),
    **spread(
        CHECKPOINTS,
        """
save_strategy save_total_limit save_only_model save_safetensors save_on_each_node saves_per_epoch
save_first_step keep_last_n_checkpoints checkpointing_steps enable_jit_checkpoint
""",
    ),
    **spread(
        DEVICE,
        """
local_rank use_cpu no_cuda device_map num_processes num_machines ray_num_workers use_ray master_addr master_port
accelerate_config ray_run_name standalone nnodes nproc_per_node node_rank rdzv_* active main_process_port
config_file machine_rank main_process_ip multi_gpu use_deepspeed deepspeed_hostfile deepspeed_config_file
""",
    ),
    **dict.fromkeys(["resume_from_checkpoint", "auto_resume_from_checkpoints", "ignore_data_skip"], RESUME),
    **spread(
        "nothing in a recipe depends on it",
        """
strict debug do_train do_eval do_predict ddp_backend skip_memory_metrics eval_delay
hf_use_auth_token hf_hub_token env_vars
""",
    ),
    **dict.fromkeys(["metric_for_best_model", "greater_is_better"], "nothing compares evaluations"),
    "trust_remote_code": "code of models is never run; the architecture must be one that posttrain knows",
    "shuffle_dataset": "rows are shuffled by the seed",
    "data_seed": "one seed rules the run: `seed`",
    "full_determinism": "runs are deterministic on the same machine",
}
"""Keys that need nothing, and why; `*` at the end of a word stands for any ending."""
UNSUPPORTED: dict[str, str] = {
    **spread(
        PUBLISH,
        """
push_to_hub hub_model_id hub_token hub_strategy hub_private_repo hub_revision
""",
    ),
    "neftune_noise_alpha": "noise on embeddings (NEFTune) is not there; leave it out",
    "label_smoothing_factor": "label smoothing is not there in sft; leave it out",
    "resize_vocab": "added tokens come from an `init` stage with `model` and `added_tokens`",
    "add_tokens": "added tokens come from an `init` stage with `model` and `added_tokens`",
    "tokens": "added tokens come from an `init` stage with `model` and `added_tokens`",
    "rope_scaling": "set it in the model's own config.json",
    "eval_dataset": "hold out rows of the training data with `validation_fraction`, or add an `evaluate` stage",
    "test_datasets": "hold out rows of the training data with `validation_fraction`, or add an `evaluate` stage",
    "dataset_exact_deduplication": "remove repeated rows in a `curate` stage",
    "plugins": "posttrain has no plugins; see docs/extending.md",
}
"""Keys without a counterpart, and what to do."""
