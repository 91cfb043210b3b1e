"""Keys of verl for which a recipe needs nothing, or that have no counterpart."""

from schemas.source.foreign_keys import DEVICE, FOLDERS, LOADING, RESUME, SPEED, TRACKING, spread

A, R, M = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."


def _below(prefix: str, words: str) -> str:
    return " ".join(prefix + word for word in words.split())


HARMLESS = (
    spread(
        TRACKING,
        """
trainer.project_name trainer.experiment_name trainer.logger trainer.log_val_generations
trainer.rollout_data_dir trainer.validation_data_dir data.return_raw_chat data.return_raw_input_ids
data.return_full_prompt global_profiler.** reward_model.launch_reward_fn_async
""",
    )
    | spread(
        FOLDERS,
        """
config_path config_name config_dir working_dir trainer.default_local_dir trainer.default_hdfs_dir trainer.checkpoint.**
""",
    )
    | spread(
        f"{DEVICE}; `--devices N` writes them",
        """
standalone nnodes nproc_per_node node_rank rdzv_*
trainer.n_gpus_per_node trainer.nnodes trainer.device ray_kwargs.** trainer.balance_batch
trainer.ray_wait_register_center_timeout ray_init.** no_wait runtime_env address submission_id entrypoint_*
""",
    )
    | spread(
        RESUME,
        """
trainer.resume_mode trainer.resume_from_path trainer.resume_from_checkpoint
""",
    )
    | spread(
        LOADING,
        """
data.shuffle data.dataloader_num_workers data.filter_overlong_prompts_workers data.use_shm
data.balance_dp_token data.image_key data.video_key data.trust_remote_code
""",
    )
    | spread(
        SPEED,
        _below(
            M,
            """
use_remove_padding use_shm use_liger use_fused_kernels enable_activation_offload trust_remote_code
external_lib fused_kernel_options.*
""",
        ),
    )
    | spread(
        SPEED,
        _below(
            R,
            """
name mode dtype gpu_memory_utilization enforce_eager free_cache_engine tensor_model_parallel_size
data_parallel_size max_num_batched_tokens max_num_seqs max_model_len enable_chunked_prefill
enable_prefix_caching load_format log_prob_* disable_log_stats layered_summon ignore_eos engine_kwargs.**
calculate_log_probs agent.** checkpoint_engine.**
""",
        ),
    )
    | spread(
        SPEED,
        _below(
            A,
            """
use_dynamic_bsz ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu
ulysses_sequence_parallel_size use_torch_compile strategy shuffle data_loader_seed checkpoint.**
entropy_from_logits_with_chunking entropy_checkpointing use_remove_padding use_fused_kernels
""",
        ),
    )
    | spread("a group of defaults: what is not the default is a key of its own", "*.(group) engine optim model")
    | spread(
        SPEED,
        """
engine.** data.pad_mode data.use_dynamic_bsz data.max_token_len_per_gpu data.ignore_input_ids_mismatch
model.use_remove_padding checkpoint.** profiler.** trainer.profile_interval data.val_max_samples
actor_rollout_ref.ref.** actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout
data.micro_batch_size_per_gpu model.use_liger model.use_shm model.external_lib model.trust_remote_code
use_remove_padding ulysses_sequence_parallel_size trainer.use_legacy_worker_impl
trainer.max_actor_ckpt_to_keep trainer.val_only trainer.max_critic_ckpt_to_keep trainer.max_ckpt_to_keep
trainer.del_local_ckpt_after_load trainer.esi_redundant_time config_name hydra.** transfer_queue.**
""",
    )
)
"""Keys that need nothing, and why."""
UNSUPPORTED = {
    "data.filter_overlong_prompts": "drop long prompts in a curate stage",
    "data.truncation": "prompts are never cut",
    f"{M}tokenizer_path": "a model is trained with its own tokenizer",
    f"{M}override_config.**": "set it in the model's own config.json",
    f"{M}custom_chat_template": "set `chat_template: path:template.jinja`",
    "algorithm.use_pf_ppo": "see docs/rl.md for `prompt_sampler` and `resample`",
    f"{A}policy_loss.**": "see the presets in docs/recipes.md",
    "algorithm.rollout_correction.**": "importance correction is `importance_correction` of the stage",
    "algorithm.rollout_is*": "importance correction is `importance_correction` of the stage",
}
"""Keys without a counterpart, and what to do."""
