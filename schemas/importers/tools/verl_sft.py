"""verl's fine-tuning, `verl.trainer.fsdp_sft_trainer` and `verl.trainer.sft_trainer`, and its keys of adapters."""

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
    put_held_out,
    put_sources,
    put_truncation,
)
from schemas.importers.common.optimisation import Names, map_optimisation, map_steps
from schemas.importers.common.references import refer
from schemas.importers.common.values import number, whole
from schemas.source.foreign_keys import SPEED

COLUMNS = (
    "data.prompt_key",
    "data.response_key",
    "data.multiturn",
    "data.prompt_dict_keys",
    "data.response_dict_keys",
    "data.messages_key",
    "data.tools_key",
)


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
    """Write the recipe of `verl.trainer.fsdp_sft_trainer`, or of `verl.trainer.sft_trainer`, which has an engine."""
    leaves = job.leaves
    stage = job.draft.stage("sft", "sft")
    map_model(job, stage, leaves.first("model.partial_pretrain", "model.path"))
    files = leaves.get("data.train_files")
    listed = files if isinstance(files, list) else [] if files is None else [files]
    if not listed:
        raise job.fail("data.train_files", "the configuration names no data", "add `data.train_files: train.parquet`")
    has_engine = leaves.has("engine") or any(word.startswith("verl.trainer.sft_trainer") for word in job.words)
    is_chat = has_engine or bool(leaves.get("data.multiturn.enable")) or leaves.has("data.messages_key")
    sources = [_make_lesson(job, file, is_chat) for file in listed]
    put_sources(stage, "data", sources, "data.train_files")
    leaves.mapped("data.train_files", f"{stage.name}.data")
    for key in COLUMNS:
        leaves.account(key, "mapped", f"{stage.name}.data.columns")
    if most := leaves.get("data.train_max_samples"):
        _limit_rows(job, stage, sources, most)
    if is_chat:
        stage.put("train_on", "all", "data.multiturn")
    stage.copy("data.train_batch_size", "per_device_train_batch_size", whole, 256)
    leaves.harmless("data.micro_batch_size", SPEED)
    stage.copy("data.max_length", "max_length", whole, 1024)
    mode = leaves.get("data.truncation", "error")
    put_truncation(stage, "data.truncation", mode == "right")
    betas = leaves.get("optim.betas")
    pair = betas if isinstance(betas, list) and len(betas) == 2 else [0.9, 0.999 if has_engine else 0.95]
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
            rate=1e-3 if has_engine else 1e-5,
            decay=0.01,
            shape="constant" if has_engine else "cosine",
            warmup=0.0 if has_engine else 0.1,
        ),
    )
    map_steps(stage, "trainer.total_epochs", "trainer.total_training_steps", 4.0)
    map_reporting(stage, {"save": "trainer.save_freq", "recompute": "model.enable_gradient_checkpointing"})
    _map_validation(job, stage, is_chat)
    map_lora(stage, "model.", "model.lora_rank")
    dtype = "engine.model_dtype" if has_engine else "model.fsdp_config.model_dtype"
    if str(leaves.get(dtype, "fp32")) in ("bf16", "bfloat16"):
        stage.put("dtype", "bfloat16", dtype)
        leaves.mapped(dtype, f"{stage.name}.dtype")
    else:
        stage.put("bf16", True, "the trainer computes in bfloat16")
    map_group(job, stage, ("model.fsdp_config", "model.strategy", "engine"), ())
    map_seed(job, "trainer.seed", 1)


def _limit_rows(job: Job, stage: StageDraft, sources: list[Source], most: Any) -> None:
    """Take over the number of rows that are trained on, which is of all files together; -1 is all of them."""
    key = "data.train_max_samples"
    if whole(most) > 0 and len(sources) == 1:
        put_sources(stage, "data", [{**sources[0], "max_rows": whole(most)}], "data.train_files")
        job.leaves.mapped(key, f"{stage.name}.data.max_rows")
    elif whole(most) > 0:
        job.leaves.account(key, "not supported", "of several files: set `max_rows` of each")


def _map_validation(job: Job, stage: StageDraft, is_chat: bool) -> None:
    """Map the files whose loss is computed during training, every `test_freq` steps; verl's default is never."""
    leaves, files = job.leaves, job.leaves.get("data.val_files")
    every = whole(leaves.get("trainer.test_freq", -1))
    if files and every > 0:
        listed = files if isinstance(files, list) else [files]
        put_held_out(stage, [_make_lesson(job, file, is_chat) for file in listed], "data.val_files")
        stage.put("eval_steps", every, "trainer.test_freq")
        leaves.mapped("data.val_files", f"{stage.name}.validation")
        leaves.mapped("trainer.test_freq", f"{stage.name}.eval_steps")
    for key in ("data.val_files", "trainer.test_freq"):
        leaves.harmless(key, "`validation` with `eval_steps` evaluates in training; here trainer.test_freq never comes")


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
