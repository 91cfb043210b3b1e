"""LLaMA-Factory's second configuration format (v1), with the data sets of the YAML file that `train_dataset` names."""

from pathlib import Path

from schemas.base import JsonObject
from schemas.errors import RecipeError
from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.files import read_config
from schemas.importers.common.job import (
    Job,
    Source,
    Tool,
    asks_for_shards,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_held_out,
    put_sources,
    put_split,
    put_truncation,
)
from schemas.importers.common.optimisation import Names, map_batch, map_optimisation, map_precision, map_steps
from schemas.importers.common.pair_losses import map_pair_loss
from schemas.importers.common.references import refer
from schemas.importers.common.values import number, whole
from schemas.importers.known_keys.llama_factory_v1 import KEYS
from schemas.source.foreign_keys import HARMLESS, SPEED, UNSUPPORTED

KINDS = {"sft": "sft", "dpo": "preference", "rm": "reward_model"}
"""Commands of llamafactory-cli: the kinds of stages."""
PAIR_KEYS = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha")
LORA = LoraNames(
    "peft_config.r",
    "peft_config.lora_alpha",
    "peft_config.lora_dropout",
    "peft_config.target_modules",
    "peft_config.modules_to_save",
    "peft_config.use_rslora",
    "peft_config.use_dora",
    rank=8,
    scale=16,
    dropped=0.05,
)
QUANTISATION = QuantisationNames(
    ("quant_config.quantization_bit",),
    "quant_config.quantization_type",
    "quant_config.double_quantization",
    ("quant_config.name", "quant_config.compute_dtype"),
    is_nested=True,
)
NAMES = Names(
    optim="optim_config.name",
    schedule="lr_scheduler_config.name",
    warmup_ratio="lr_scheduler_config.warmup_ratio",
    warmup_steps="lr_scheduler_config.warmup_steps",
    weight_decay="optim_config.wd",
    epsilon="optim_config.adamw_eps",
    rate=1e-4,
    decay=0.01,
    shape="constant",
)
SHARDING = (("dist_config.name",), ("dist_config.config_file",))
CONVERTERS = {"alpaca": "alpaca", "sharegpt": "messages", "openai": "messages", "pair": "preference"}
"""Converters of rows: posttrain's formats."""
OWN_PAIRS = {"chosen": "chosen_messages", "rejected": "rejected_messages"}


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    kind = _find_kind(job)
    stage = job.draft.stage({"preference": "dpo", "reward_model": "reward"}.get(kind, kind), kind)
    map_model(job, stage, "model")
    put_sources(stage, "data", _map_data(job, stage, "train_dataset", "data"), "train_dataset")
    if leaves.has("eval_dataset"):
        put_held_out(stage, _map_data(job, stage, "eval_dataset", "validation"), "eval_dataset")
    map_optimisation(stage, NAMES)
    betas = leaves.get("optim_config.adamw_betas")
    if isinstance(betas, list) and len(betas) == 2 and stage.get("optim") != "adafactor":
        for ours, value in zip(("adam_beta1", "adam_beta2"), betas, strict=True):
            stage.put(ours, number(value), "optim_config.adamw_betas")
        leaves.mapped("optim_config.adamw_betas", f"{stage.name}.adam_beta1, adam_beta2")
    map_steps(stage, "num_train_epochs", "max_steps", 3.0)
    _map_batch(job, stage)
    stage.copy("cutoff_len", "max_length", whole, 2048)
    put_truncation(stage, "cutoff_len", True)
    _map_loss(stage)
    if leaves.has("custom_chat_template"):
        stage.copy("custom_chat_template", "chat_template", str)
    leaves.harmless("template", "the model's own chat template writes the rows")
    map_precision(stage, "bf16", "fp16", default=True)
    _map_adapters(job, stage)
    map_reporting(stage, {"recompute": "enable_activation_checkpointing"})
    if not leaves.has("enable_activation_checkpointing"):
        stage.put("gradient_checkpointing", True, "default of enable_activation_checkpointing")
    map_group(job, stage, *SHARDING)
    map_seed(job, "seed", 42)


def _find_kind(job: Job) -> str:
    """Return the kind of the stage: as the command, the trainer or the keys say."""
    words = [word for word in job.words if word in KINDS]
    if words:
        return KINDS[words[-1]]
    return "preference" if any(job.leaves.has(key) for key in PAIR_KEYS) or _reads_pairs(job) else "sft"


def _reads_pairs(job: Job) -> bool:
    infos = _read_infos(job, str(job.leaves.get("train_dataset", "")))
    return any(info.get("converter") == "pair" or "dpo" in name for name, info in infos.items())


def _map_batch(job: Job, stage: StageDraft) -> None:
    """Take over the rows of a step: `global_batch_size`, or those of every device."""
    leaves = job.leaves
    if not leaves.has("global_batch_size"):
        map_batch(stage, "micro_batch_size", "gradient_accumulation_steps", job.devices, 1)
        leaves.harmless("global_batch_size", "is null: the rows of all devices")
        return
    total, each = whole(leaves.get("global_batch_size")), whole(leaves.get("micro_batch_size", 1))
    note = f"{total} rows per optimiser step"
    if stage.kind == "sft" and total % each == 0:
        stage.put("per_device_train_batch_size", each, "micro_batch_size")
        stage.put("gradient_accumulation_steps", total // each, f"global_batch_size: {note}")
    else:
        stage.put("per_device_train_batch_size", total, "global_batch_size")
    for key in ("global_batch_size", "micro_batch_size"):
        leaves.mapped(key, f"{stage.name}.per_device_train_batch_size", note)


def _map_loss(stage: StageDraft) -> None:
    leaves = stage.leaves
    if stage.kind == "sft":
        stage.put("train_on", "all", "every turn of the assistant is a sample")
        has_rows = str(leaves.get("batching_strategy", "normal")) in ("normal", "padding_free")
        why = "rows never attend to each other" if has_rows else "a step has a number of rows, not of tokens"
        leaves.account("batching_strategy", "harmless" if has_rows else "not supported", why)
    if stage.kind != "preference":
        for key in PAIR_KEYS:
            leaves.harmless(key, "of preference losses")
        return
    map_pair_loss(stage, "pref_loss", "pref_beta", 0.1, "dpo_label_smoothing")
    loss = stage.get("loss")
    if isinstance(loss, dict) and loss["use"] == "simpo":
        stage.put("loss", {**loss, "gamma": number(leaves.get("simpo_gamma", 0.5))}, "pref_loss")
        leaves.account("simpo_gamma", "mapped", f"{stage.name}.loss.gamma")
    if leaves.get("pref_ftx"):
        stage.put("loss", [stage.get("loss"), {"use": "nll", "weight": number(leaves.get("pref_ftx"))}], "pref_ftx")
        leaves.mapped("pref_ftx", f"{stage.name}.loss: nll")
    leaves.harmless("simpo_gamma", "of the loss simpo")
    leaves.harmless("pref_ftx", "is 0")
    leaves.unsupported("ld_alpha", "tokens of both sides count alike; a loss of your own can weigh them")


def _map_adapters(job: Job, stage: StageDraft) -> None:
    leaves = job.leaves
    name = str(leaves.get("peft_config.name", ""))
    map_adapters(stage, LORA, name == "lora", "peft_config.name")
    status = "mapped" if name == "lora" else "not supported"
    leaves.account("peft_config.name", status, f"{stage.name}.use_peft: LoRA, or all weights")
    adapter = "name the adapter as `model`: it is merged into its base first"
    leaves.unsupported("peft_config.adapter_name_or_path", adapter)
    for key in ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"):
        leaves.unsupported(f"peft_config.{key}", "parts of a model cannot be frozen; train adapters with `use_peft`")
    leaves.harmless("peft_config.cast_trainable_params_to_fp32", "weights are float32 unless `dtype` says otherwise")
    for key in ("export_dir", "export_size", "export_hub_model_id", "infer_dtype", "export_legacy_format"):
        leaves.harmless(f"peft_config.{key}", "the output is a folder that PEFT and transformers read")
    map_quantisation(stage, QUANTISATION, sharded=asks_for_shards(job, *SHARDING))


def _map_data(job: Job, stage: StageDraft, key: str, port: str) -> list[Source]:
    """Return the sources that a YAML file lists, or the file or data set itself. Raise RecipeError if there is none."""
    given = str(job.leaves.get(key, ""))
    if not given:
        raise job.fail(key, "the configuration names no data", f"add `{key}: data/rows.yaml`")
    if given.endswith((".yaml", ".yml")) and not _read_infos(job, given):
        note = f"{given} is not here: give its data sets as sources; taken as a file of that name"
        job.leaves.account(key, "not supported", note)
        return [{"from": f"path:./{Path(given).with_suffix('.jsonl')}"}]
    infos = _read_infos(job, given) or {"default": {"path": given}}
    sources = [_make_source(job, stage, key, name, info, port) for name, info in infos.items()]
    job.leaves.mapped(key, f"{stage.name}.{port}", ", ".join(source["from"] for source in sources))
    return sources


def _read_infos(job: Job, given: str) -> dict[str, JsonObject]:
    place = job.places.find(given) if given.endswith((".yaml", ".yml")) else None
    if place is None or not place.is_file():
        return {}
    try:
        tree = read_config(place).tree
    except RecipeError as error:
        raise job.fail("train_dataset", f"{given}: {error}", "correct the file") from None
    return {name: info for name, info in tree.items() if isinstance(info, dict)}


def _make_source(job: Job, stage: StageDraft, key: str, name: str, info: JsonObject, port: str) -> Source:
    source: Source = {"from": refer(str(info.get("path", name)), job.places)}
    where = f"{key}.{name}"
    converter = info.get("converter")
    source["format"] = CONVERTERS.get(str(converter), "messages" if stage.kind == "sft" else "preference")
    if converter is None and stage.kind != "sft":
        source["columns"] = dict(OWN_PAIRS)
    if converter is not None and str(converter) not in CONVERTERS:
        job.leaves.state_default(f"{where}.converter", converter, f"rows of the format {source['format']}")
    if isinstance(info.get("split"), str):
        put_split(job, f"{where}.split", info["split"], source, f"{stage.name}.{port}")
    if isinstance(info.get("size"), int):
        source["max_rows"] = info["size"]
        job.leaves.state_default(f"{where}.size", info["size"], "max_rows, drawn without repetition")
    weight = info.get("weight")
    if isinstance(weight, int | float) and weight >= 1:
        source["repeat"] = round(weight)
        job.leaves.state_default(f"{where}.weight", weight, f"repeat: {round(weight)}; theirs draws with repetition")
    elif weight is not None:
        job.leaves.state_default(f"{where}.weight", weight, "all rows; set `max_rows` to that share of them")
    for unknown in sorted(info.keys() - {"path", "source", "split", "converter", "size", "weight", "streaming"}):
        job.leaves.state_default(f"{where}.{unknown}", info[unknown], "nothing: the source has no such key")
    return source


TOOL = Tool(
    "llama-factory-v1",
    "LLaMA-Factory v1",
    KEYS,
    ("train_dataset", "peft_config", "dist_config", "kernel_config", "optim_config", "model_class", "sample_backend"),
    convert,
    (),
    HARMLESS
    | {
        "model_class": "the architecture is read from the model",
        "kernel_config.*": SPEED,
        "init_config.*": "weights are read where they are needed",
        "flash_attn": SPEED,
        "batching_workers": SPEED,
        "dist_timeout": SPEED,
        "sample_backend": "an evaluate stage samples",
        "max_new_tokens": "an evaluate stage samples",
        "dp_size": "`--devices` says how many devices there are",
        "mp_replicate_size": "`--devices` says how many devices there are",
        "mp_shard_size": "`--devices` says how many devices there are",
        "cp_mode": "of context parallelism",
        "dist_config.*": "one device has nothing to shard; `--devices N` writes `resources`",
        "optim_config.lr": "learning_rate comes before it",
        "save_epochs": "checkpoints are written every `save_steps`",
        "save_ckpt_as_hf": "the output is a folder of transformers",
    },
    UNSUPPORTED
    | {
        "cp_size": "a row is on one device",
        "optim_config.*": "of this optimiser only learning rate, decay and moments can be set",
        "lr_scheduler_config.*": "write it as lr_scheduler_type, warmup_steps and min_lr_ratio",
    },
)
"""The tool."""
