"""axolotl's configurations: fine-tuning, preference optimisation, reward models and GRPO."""

from typing import Any

from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation, use_bfloat16
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import (
    Job,
    Tool,
    asks_for_shards,
    map_evaluation,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_held_out,
    put_sources,
    put_truncation,
)
from schemas.importers.common.leaves import Leaves
from schemas.importers.common.optimisation import Names, map_batch, map_optimisation, map_precision, map_steps
from schemas.importers.common.pair_losses import LOSSES, set_pair_losses
from schemas.importers.common.templates import map_template
from schemas.importers.common.values import flag, number, whole
from schemas.importers.known_keys.axolotl import KEYS
from schemas.importers.tools.axolotl_data import map_sources, map_text
from schemas.importers.tools.trl_rl import map_rl
from schemas.source.foreign_keys import HARMLESS, LOADING, SPEED, UNSUPPORTED

NAMES = Names(optim="optimizer", schedule="lr_scheduler", shape="cosine", warmup=0.03, rate=2e-4)
LORA = LoraNames(rslora="peft_use_rslora", dora="peft_use_dora", rank=8, scale=16)
QUANTISATION = QuantisationNames(("load_in_4bit", "load_in_8bit"), is_nested=True)
SHARDING = (("fsdp", "fsdp_config", "fsdp_version", "fsdp_final_state_dict_type"), ("deepspeed",))
PAIRS = {"dpo": "dpo", "ipo": "ipo", "kto": "kto", "orpo": "orpo", "simpo": "simpo"}


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    method = str(leaves.get("rl", "")).lower()
    kind, name = _find_kind(leaves, method)
    stage = job.draft.stage(name, kind)
    if leaves.has("rl"):
        known = kind in ("preference", "rl")
        leaves.account("rl", "mapped" if known else "not supported", f"a stage of kind {kind}")
    map_model(job, stage, "base_model", "revision_of_model")
    leaves.harmless("base_model_config", "the model's own config.json")
    _map_tokenizer(job)
    listed = range(len(_list(leaves.get("datasets"))))
    sources = [source for i in listed for source in map_sources(job, stage, f"datasets.{i}")]
    sources += [map_text(job, stage, key) for key in _pretraining(leaves.get("pretraining_dataset"))]
    put_sources(stage, "prompts" if kind == "rl" else "data", [s for s in sources if s], "datasets")
    if "data" not in stage.lines and "prompts" not in stage.lines:
        raise job.fail("datasets", "the configuration names no data that can be read", "add `datasets: [{path: …}]`")
    map_optimisation(stage, NAMES)
    _map_last_rate(stage)
    if kind == "rl":
        map_rl(job, stage, "trl.", "micro_batch_size", "num_epochs")
    else:
        map_steps(stage, "num_epochs", "max_steps", 1.0)
        map_batch(stage, "micro_batch_size", "gradient_accumulation_steps", job.devices, 1)
        stage.copy("sequence_len", "max_length", whole, 512)
        if leaves.has("excess_length_strategy") and leaves.get("excess_length_strategy") != "drop":
            put_truncation(stage, "excess_length_strategy", leaves.get("excess_length_strategy") == "truncate")
    _map_masks(stage, kind)
    if kind == "sft":
        stage.copy("sample_packing", "packing", flag)
    elif kind == "preference":
        _map_loss(stage, method)
    leaves.harmless("vllm", "of vLLM, which posttrain places by itself: `engine: vllm`")
    leaves.unsupported("sample_packing", "only sft packs rows; the result is the same")
    map_precision(stage, "bf16", "fp16")
    leaves.harmless("bfloat16", "bf16 says it")
    adapter = str(leaves.get("adapter", "")).lower()
    if kind == "process_reward_model":
        leaves.unsupported("adapter", "a process reward model trains all weights")
        adapter = ""
    map_adapters(stage, LORA, adapter in ("lora", "qlora"), "adapter")
    if leaves.get("lora_target_linear") and adapter and "lora_target_modules" not in stage.lines:
        leaves.mapped("lora_target_linear", f"{stage.name}.lora_target_modules: all-linear, the default")
    leaves.harmless("lora_target_linear", "says nothing more than the targets")
    if adapter in ("lora", "qlora"):
        leaves.mapped("adapter", f"{stage.name}.use_peft")
    leaves.unsupported("adapter", "adapters are LoRA and its relatives: `use_peft`")
    sharded = asks_for_shards(job, *SHARDING)
    if not map_quantisation(stage, QUANTISATION, sharded=sharded) and adapter == "qlora":
        leaves.entries.pop("adapter", None)
        leaves.account("adapter", "not supported", "LoRA without quantisation, because `load_in_4bit` is off")
        use_bfloat16(stage, "instead of quantised weights")
    map_reporting(stage)
    if kind != "rl":
        _map_held_out(job, stage)
    for key in ("val_set_size", "eval_steps", "evals_per_epoch"):
        leaves.harmless(key, "give `eval_prompts` to evaluate in training")
    map_group(job, stage, *SHARDING)
    map_seed(job, "seed", 42)


def _find_kind(leaves: Leaves, method: str) -> tuple[str, str]:
    """Return kind and name of the stage."""
    kind = "preference" if method in PAIRS else "rl" if method in ("grpo", "gdpo") else "sft"
    if leaves.get("reward_model"):
        kind = "reward_model"
        leaves.mapped("reward_model", "a stage of kind reward_model")
    if leaves.get("process_reward_model"):
        kind = "process_reward_model"
        leaves.mapped("process_reward_model", "a stage of kind process_reward_model")
    rewards = {"reward_model": "reward", "process_reward_model": "process_reward"}
    if kind in rewards:
        leaves.harmless("num_labels", "the head has one output")
    return kind, {"sft": "sft", "preference": method, "rl": "grpo", **rewards}[kind]


def _map_last_rate(stage: StageDraft) -> None:
    """Map the last rate of a cosine; one that ends at its first rate is constant."""
    leaves = stage.leaves
    if leaves.has("cosine_min_lr_ratio") and stage.get("lr_scheduler_type") in (None, "cosine"):
        stage.copy("cosine_min_lr_ratio", "min_lr_ratio", number)
        stage.put("lr_scheduler_type", "cosine_with_min_lr", "cosine_min_lr_ratio")
        if stage.get("min_lr_ratio", 0) == 1:  # the last rate is the first
            stage.put("lr_scheduler_type", "constant", "cosine_min_lr_ratio: 1")
            del stage.lines["min_lr_ratio"]
            leaves.renote(f"{stage.name}.min_lr_ratio", f"{stage.name}.lr_scheduler_type: constant")


def _map_held_out(job: Job, stage: StageDraft) -> None:
    """Map the rows to evaluate on, their own or a share of the data, and the interval of evaluations."""
    listed = range(len(_list(job.leaves.get("test_datasets"))))
    sources = [source for i in listed for source in map_sources(job, stage, f"test_datasets.{i}")]
    put_held_out(stage, sources, "test_datasets")
    map_evaluation(job, stage, "val_set_size", "eval_steps", "early_stopping_patience")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _pretraining(value: Any) -> list[str]:
    if isinstance(value, list):
        return [f"pretraining_dataset.{index}" for index in range(len(value))]
    return [] if value is None else ["pretraining_dataset"]


def _map_tokenizer(job: Job) -> None:
    leaves = job.leaves
    if leaves.get("tokenizer_config") in (None, leaves.get("base_model")):
        leaves.harmless("tokenizer_config", "the model's own tokenizer")
    leaves.unsupported("tokenizer_config", "a model is trained with its own tokenizer")
    for leaf in leaves.leaves_of("special_tokens"):
        leaves.account(leaf, "default differs", f"theirs {leaves.values[leaf]}; ours that of the model's tokenizer")


def _map_masks(stage: StageDraft, kind: str) -> None:
    """Map what has a loss, and the chat template."""
    leaves = stage.leaves
    if leaves.get("train_on_inputs") in (None, False, "false", "no"):
        leaves.account("train_on_inputs", "mapped", "prompts have no loss")
    leaves.unsupported("train_on_inputs", "prompts have no loss; plain texts (`format: text`) have one everywhere")
    if kind == "sft" and "train_on" not in stage.lines:
        stage.put("train_on", "all", "train_on_inputs, roles_to_train")
    for key in ("chat_template_jinja", "chat_template"):
        if leaves.has(key):
            map_template(stage, key)
    if leaves.has("default_system_message"):
        stage.copy("default_system_message", "system_prompt", str)
    for key in ("train_on_eos", "roles_to_train"):
        leaves.harmless(key, "the assistant's turns and their ends have a loss")


def _map_loss(stage: StageDraft, method: str) -> None:
    leaves = stage.leaves
    beta = (
        leaves.first("rl_beta", "dpo_beta", "orpo_alpha") if method != "orpo" else leaves.first("orpo_alpha", "rl_beta")
    )
    use = dict(LOSSES[PAIRS[method]])
    if method == "kto":
        for theirs, ours in (
            ("kto_desirable_weight", "desirable_weight"),
            ("kto_undesirable_weight", "undesirable_weight"),
        ):
            if leaves.has(theirs):
                use[ours] = number(leaves.mapped(theirs, f"{stage.name}.loss.{ours}"))
    if method == "simpo" and leaves.has("simpo_gamma"):
        use["gamma"] = number(leaves.mapped("simpo_gamma", f"{stage.name}.loss.gamma"))
    smoothing = leaves.first("dpo_label_smoothing", "label_smoothing")
    set_pair_losses(stage, [use], "rl", beta, 0.1, smoothing)


TOOL = Tool(
    "axolotl",
    "axolotl",
    KEYS,
    (
        "base_model",
        "micro_batch_size",
        "sequence_len",
        "val_set_size",
        "sample_packing",
        "lora_target_linear",
        "num_epochs",
    ),
    convert,
    ("axolotl",),
    HARMLESS
    | {
        "shuffle_merged_datasets": LOADING,
        "eval_sample_packing": SPEED,
        "eval_table_size": "samples are in the report",
        "eval_max_new_tokens": "samples are in the report",
        "group_by_length": SPEED,
        "lora_fan_in_fan_out": "found from the kind of the layer",
        "lora_mlp_kernel": SPEED,
        "lora_qkv_kernel": SPEED,
        "lora_o_kernel": SPEED,
        "warmup_steps": "no steps",
        "device": "posttrain places steps on Ray nodes",
        "axolotl_config_path": "the file itself",
        "dataset_prepared_path": "converted rows are cached",
        "skip_prepare_dataset": "converted rows are cached",
        "excess_length_strategy": "rows over max_length are dropped and counted",
        "use_mlflow": "MLflow has all metrics",
    },
    UNSUPPORTED
    | {
        "merge_lora": "later stages merge adapters by themselves",
        "lora_model_dir": "name the adapter as `model`: it is merged into its base first",
        "relora_steps": "ReLoRA is not there; write a loop of stages",
        "unfrozen_parameters": "parts of a model cannot be frozen; train adapters with `use_peft`",
        "loraplus_lr_ratio": "one learning rate for both matrices of an adapter",
        "noisy_embedding_alpha": "noise on embeddings (NEFTune) is not there",
        "curriculum_sampling": "rows are shuffled by the seed",
    },
)
"""The tool."""
