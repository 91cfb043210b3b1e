"""Keys of axolotl, LLaMA-Factory, lm-eval, oumi, TRL and verl, for the hint at an unknown key."""

SYNONYMS = {
    "adapter": "use_peft",
    "additional_target": "modules_to_save",
    "advantage_estimator": "advantage",
    "advantages": "advantage",
    "base_model": "model",
    "batch_size": "per_device_train_batch_size",
    "bootstrap_iters": "num_bootstrap",
    "clip_grad": "max_grad_norm",
    "cutoff_len": "max_length",
    "data_sampler": "prompt_sampler",
    "dataset": "data",
    "datasets": "data",
    "depends_on": "after",
    "early_stopping": "early_stopping_patience",
    "effective_batch_size": "per_device_train_batch_size",
    "env_vars": "vars",
    "epochs": "num_train_epochs",
    "eval_split": "validation_fraction",
    "eval_tasks": "tasks",
    "filters": "filter_groups",
    "gpus": "resources",
    "grad_accum": "gradient_accumulation_steps",
    "group_size": "num_generations",
    "importance_sampling": "importance_correction",
    "inputs": "models",
    "logits_processor": "logits_processors",
    "lora_modules_to_save": "modules_to_save",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "loss": "policy_loss",
    "loss_agg_mode": "loss_aggregation",
    "loss_type": "policy_loss",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "lr_warmup_steps": "warmup_steps",
    "max_new_tokens": "max_completion_length",
    "max_response_length": "max_completion_length",
    "max_seq_len": "max_length",
    "max_seq_length": "max_length",
    "method": "merge_method",
    "min_lr": "min_lr_ratio",
    "min_lr_rate": "min_lr_ratio",
    "micro_batch_size": "per_device_train_batch_size",
    "model_name": "model",
    "model_name_or_path": "model",
    "n": "num_generations",
    "needs": "after",
    "num_epochs": "num_train_epochs",
    "num_mini_batch": "num_mini_batches",
    "num_samples": "num_generations",
    "optimizer": "optim",
    "pack": "packing",
    "peft_use_dora": "use_dora",
    "peft_use_rslora": "use_rslora",
    "ppo_epochs": "num_iterations",
    "preference_data": "data",
    "ref_model": "reference",
    "ref_model_mixup_alpha": "mixup_alpha",
    "ref_model_sync_steps": "sync_steps",
    "reward": "rewards",
    "reward_funcs": "rewards",
    "rollout_n": "num_generations",
    "sample_packing": "packing",
    "sequence_len": "max_length",
    "steps": "max_steps",
    "train_batch_size": "generation_batch_size",
    "type": "kind",
    "val_set_size": "validation_fraction",
    "val_size": "validation_fraction",
    "value_model": "critic",
    "variables": "vars",
    "warmup": "warmup_ratio",
}


UNQUANTISED = (
    "adapters over quantised weights (QLoRA) are not supported: remove it, and use `dtype: bfloat16` with `use_peft`"
)
PUBLISH = "publish a finished model as docs/publishing.md describes"
ELSEWHERE = {
    "bnb_4bit_compute_dtype": UNQUANTISED,
    "bnb_4bit_quant_type": UNQUANTISED,
    "beta": "it is `coef` of the KL term in `loss_terms` of an rl stage, and an option of a preference loss: "
    "`loss: {use: dpo, beta: 0.1}`",
    "dataset_name": "name the source: `data: hub:org/name`, or `data: path:file.jsonl`",
    "do_eval": "set `validation_fraction` and `eval_steps`",
    "epsilon": "it is an option of the policy loss: `policy_loss: {use: clipped, epsilon: 0.2}`",
    "epsilon_high": "it is an option of the policy loss: `policy_loss: {use: clipped, epsilon_high: 0.28}`",
    "eval_strategy": "set `eval_steps`",
    "fp16": "use `bf16: true`, or `dtype: bfloat16`",
    "gradient_accumulation_steps": "`max_tokens_per_micro_batch` splits a batch without changing the gradient",
    "hub_model_id": PUBLISH,
    "load_in_4bit": UNQUANTISED,
    "load_in_8bit": UNQUANTISED,
    "logging_dir": "all state is in `.posttrain`; curves are in MLflow and in the report",
    "max_prompt_length": "prompts are never cut; drop long ones in a curate stage",
    "num_train_epochs": "an rl stage counts iterations: `max_steps`",
    "output_dir": "every step has its own folder, which `posttrain path STEP` prints",
    "overwrite_output_dir": "every step has its own folder; `posttrain run --fresh` runs cached steps again",
    "per_device_eval_batch_size": "leave it out: it follows the batch of training",
    "per_device_train_batch_size": "an rl stage counts the completions of an iteration: `generation_batch_size`",
    "push_to_hub": PUBLISH,
    "quantization_bit": UNQUANTISED,
    "remove_unused_columns": "leave it out: columns that a stage does not read are ignored",
    "report_to": "leave it out: MLflow and the report get all metrics",
    "resume_from_checkpoint": "`posttrain resume` continues from the last checkpoint",
    "reward_weights": "each reward has its own: `rewards: [{use: answers.exact, weight: 0.5}]`",
    "save_strategy": "set `save_steps`",
    "save_total_limit": "leave it out: checkpoints of finished steps are removed",
    "scale_rewards": "it is an operation of `advantage`: `[center, scale]` divides by the standard deviation",
    "use_vllm": "choose the engine: `engine: vllm`",
}
"""Keys of TRL for which the stage has no key of its own, and what to do instead."""


def explain_foreign_key(word: str, words: list[str]) -> str | None:
    """Return what to write for another trainer's key, or None for a key of no known trainer."""
    ours = find_our_key(word, words)
    return f"posttrain calls this `{ours}`" if ours else ELSEWHERE.get(word)


def find_our_key(word: str, words: list[str]) -> str | None:
    """Return our key for another trainer's, where it is one of `words`."""
    ours = SYNONYMS.get(word)
    return ours if ours in words else None
