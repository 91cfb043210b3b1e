"""What axolotl, LLaMA-Factory, oumi, TRL and verl call our keys, for the hint beside an unknown one."""

SYNONYMS = {
    "adapter": "use_peft", "advantages": "advantage", "base_model": "model", 
    "batch_size": "per_device_train_batch_size",
    "clip_grad": "max_grad_norm", "cutoff_len": "max_length", "dataset": "data", "datasets": "data",
    "depends_on": "after", "effective_batch_size": "per_device_train_batch_size", "env_vars": "vars",
    "epochs": "num_train_epochs", "eval_tasks": "tasks", "filters": "filter", "gpus": "resources",
    "grad_accum": "gradient_accumulation_steps", "group_size": "num_generations", "inputs": "models",
    "loss": "surrogate", "lr": "learning_rate", "lr_scheduler": "lr_scheduler_type", 
    "max_new_tokens": "max_completion_length",
    "max_response_length": "max_completion_length", "max_seq_len": "max_length", "max_seq_length": "max_length",
    "method": "merge_method", "micro_batch_size": "per_device_train_batch_size", "model_name": "model",
    "model_name_or_path": "model", "n": "num_generations", "needs": "after", "num_epochs": "num_train_epochs",
    "num_samples": "num_generations", "pack": "packing", "preference_data": "data", "ref_model": "reference",
    "reward": "rewards", "reward_funcs": "rewards", "rollout_n": "num_generations", "sample_packing": "packing",
    "sequence_len": "max_length", "steps": "max_steps", "train_batch_size": "generation_batch_size", "type": "kind",
    "variables": "vars", "lora_rank": "lora_r", "lora_target": "lora_target_modules", "warmup": "warmup_ratio",
}  # fmt: skip


def canonical(word: str, words: list[str]) -> str | None:
    """Our key for another trainer's, where it fits here."""
    ours = SYNONYMS.get(word)
    return ours if ours in words else None
