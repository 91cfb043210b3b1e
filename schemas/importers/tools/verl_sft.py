"""verl's fine-tuning, `verl.trainer.fsdp_sft_trainer`, and its keys of adapters."""

from typing import Any

from schemas.importers.common.adapters import LoraNames, map_adapters
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import (
    Job,
    Source,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_sources,
    put_truncation,
)
from schemas.importers.common.optimisation import Names, map_optimisation, map_steps
from schemas.importers.common.references import refer
from schemas.importers.common.values import number, whole
from schemas.source.foreign_keys import SPEED


def map_lora(stage: StageDraft, prefix: str, rank_key: str) -> None:
    """Take over adapters, which a rank above 0 switches on."""
    names = LoraNames(
        r=rank_key,
        alpha=f"{prefix}lora_alpha",
        dropout=f"{prefix}lora_dropout",
        targets=f"{prefix}target_modules",
        saved=f"{prefix}modules_to_save",
        rslora=f"{prefix}use_rslora",
        dora=f"{prefix}use_dora",
        scale=16,
    )
    map_adapters(stage, names, bool(stage.leaves.get(rank_key)), rank_key)


def convert_sft(job: Job) -> None:
    """Write the recipe of `verl.trainer.fsdp_sft_trainer`."""
    leaves = job.leaves
    stage = job.draft.stage("sft", "sft")
    map_model(job, stage, leaves.first("model.partial_pretrain", "model.path"))
    files = leaves.get("data.train_files")
    listed = files if isinstance(files, list) else [] if files is None else [files]
    if not listed:
        raise job.fail("data.train_files", "the configuration names no data", "add `data.train_files: train.parquet`")
    is_chat = bool(leaves.get("data.multiturn.enable")) or leaves.has("data.messages_key")
    sources = [_make_lesson(job, file, is_chat) for file in listed]
    put_sources(stage, "data", sources, "data.train_files")
    leaves.mapped("data.train_files", f"{stage.name}.data")
    for key in ("data.prompt_key", "data.response_key", "data.multiturn", "data.prompt_dict_keys", "data.messages_key"):
        leaves.account(key, "mapped", f"{stage.name}.data.columns")
    leaves.account("data.response_dict_keys", "mapped", f"{stage.name}.data.columns")
    if is_chat:
        stage.put("train_on", "all", "data.multiturn")
    stage.copy("data.train_batch_size", "per_device_train_batch_size", whole, 256)
    leaves.harmless("data.micro_batch_size", SPEED)
    stage.copy("data.max_length", "max_length", whole, 1024)
    mode = leaves.get("data.truncation", "error")
    put_truncation(stage, "data.truncation", mode == "right")
    betas = leaves.get("optim.betas")
    pair = betas if isinstance(betas, list) and len(betas) == 2 else [0.9, 0.95]
    for ours, value in zip(("adam_beta1", "adam_beta2"), pair, strict=True):
        stage.put(ours, number(value), "optim.betas")
    leaves.account("optim.betas", "mapped", f"{stage.name}.adam_beta1, adam_beta2")
    map_optimisation(
        stage,
        Names(
            learning_rate="optim.lr",
            optim="optim.optimizer",
            schedule=leaves.first("optim.lr_scheduler", "optim.lr_scheduler_type"),
            warmup_ratio=leaves.first("optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio"),
            warmup_steps="optim.lr_warmup_steps",
            weight_decay="optim.weight_decay",
            grad_norm="optim.clip_grad",
            rate=1e-5,
            decay=0.01,
            shape="cosine",
            warmup=0.1,
        ),
    )
    map_steps(stage, "trainer.total_epochs", "trainer.total_training_steps", 4.0)
    map_reporting(stage, {"save": "trainer.save_freq", "recompute": "model.enable_gradient_checkpointing"})
    leaves.unsupported("data.val_files", "hold out rows with `validation_fraction`, or add an `evaluate` stage")
    leaves.harmless("trainer.test_freq", "nothing is held out")
    map_lora(stage, "model.", "model.lora_rank")
    if str(leaves.get("model.fsdp_config.model_dtype", "fp32")) in ("bf16", "bfloat16"):
        stage.put("dtype", "bfloat16", "model.fsdp_config.model_dtype")
        leaves.mapped("model.fsdp_config.model_dtype", f"{stage.name}.dtype")
    else:
        stage.put("bf16", True, "the trainer computes in bfloat16")
    map_group(job, stage, ("model.fsdp_config", "model.strategy"), ())
    map_seed(job, "trainer.seed", 1)


def _make_lesson(job: Job, file: Any, is_chat: bool) -> Source:
    """Return the source of a file of conversations, or of questions with answers."""
    leaves = job.leaves
    source: Source = {"from": refer(file, job.places)}
    if is_chat:
        key = str(leaves.get("data.multiturn.messages_key", leaves.get("data.messages_key", "messages")))
        return {**source, "format": "messages", **({} if key == "messages" else {"columns": {"messages": key}})}
    columns = {}
    for ours, theirs, fallback in (("prompt", "prompt", "question"), ("completion", "response", "answer")):
        column = str(leaves.get(f"data.{theirs}_key", fallback))
        inner = leaves.get(f"data.{theirs}_dict_keys")
        word = inner[0] if isinstance(inner, list) and inner else inner
        columns[ours] = f"{{{column}.{word}}}" if isinstance(word, str) else column
    return {**source, "format": "prompt_completion", "columns": columns}
